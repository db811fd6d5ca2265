"""Networks, each split into features and head, so that the head can be looked ahead alone."""

from calibrant.models.mlp import MLP
from calibrant.models.resnet import ResNet18, ResNet50
from calibrant.models.resnet_cifar import ResNet32, ResNet110
from calibrant.models.small_cnn import SmallCNN
from calibrant.models.text_cnn import TextCNN
from calibrant.models.vgg16 import VGG16

__all__ = ["MLP", "VGG16", "ResNet18", "ResNet32", "ResNet50", "ResNet110", "SmallCNN", "TextCNN"]
