"""Where data come from, and how they are split: embedded, fetched, imported, one's own, or made with a known truth."""

from calibrant.data.cifar import CIFAR10, CIFAR100
from calibrant.data.corruptions import CORRUPTIONS, corrupt
from calibrant.data.fashion_mini import FashionMini
from calibrant.data.mnist import MNIST, FashionMNIST
from calibrant.data.newsgroups import Newsgroups
from calibrant.data.own import Images, Npz, Parquet
from calibrant.data.splits import Splits, split
from calibrant.data.svhn import SVHN
from calibrant.data.synthetic import Synthetic
from calibrant.data.synthetic_text import SyntheticText
from calibrant.data.tiny_imagenet import TinyImageNet

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CORRUPTIONS",
    "MNIST",
    "SVHN",
    "FashionMNIST",
    "FashionMini",
    "Images",
    "Newsgroups",
    "Npz",
    "Parquet",
    "Splits",
    "Synthetic",
    "SyntheticText",
    "TinyImageNet",
    "corrupt",
    "split",
]
