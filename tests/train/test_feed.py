"""What a step reads: every row once an epoch, views as a slow crop makes them, parts that add up to the batch."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.core.samples import Samples
from calibrant.data.augment import Views, channel_statistics, draw_views, view
from calibrant.losses.mixup import Mixup
from calibrant.train.feed import Feed, Preparation, at, epoch_seed


def pictures(rows: int, channels: int = 3, side: int = 8) -> Samples:
    g = torch.Generator().manual_seed(rows)
    pixels = torch.randint(0, 256, (rows, channels, side, side), generator=g, dtype=torch.uint8)
    return Samples(pixels, torch.arange(rows) % 5, torch.arange(100, 100 + rows))


def feed_of(samples: Samples, batch: int, **more: object) -> Feed:
    given = {"crop": 0, "flip": "none", "mixup": None} | more
    kind = Preparation("image") if given["mixup"] is None else Preparation.fit("image", samples)
    return Feed(samples, kind, batch, 5, **given)  # type: ignore[arg-type]


def test_a_view_is_a_padded_crop_of_a_mirrored_image() -> None:
    images = pictures(40).inputs
    views = draw_views(40, 3, torch.Generator().manual_seed(0))
    found = view(images, views)
    for row in range(40):
        mirrored = images[row].flip(2) if views.mirrored[row] else images[row]
        padded = F.pad(mirrored, (3, 3, 3, 3))
        down, across = (int(v) for v in views.shift[row])
        # a mirror swaps what moving to the right brings in
        across = -across if views.mirrored[row] else across
        assert torch.equal(found[row], padded[:, 3 + down : 11 + down, 3 + across : 11 + across])
    assert views.shift.min() == -3
    assert views.shift.max() == 3
    assert found.dtype == torch.uint8


def test_no_shift_and_no_mirror_is_the_image() -> None:
    images = pictures(6).inputs
    still = Views(torch.zeros(6, 2, dtype=torch.int64), torch.zeros(6, dtype=torch.bool))
    assert torch.equal(view(images, still), images)
    feed = feed_of(pictures(20), 5, crop=2)
    feed.begin(0, 1)
    assert not feed.mirrored.any()
    assert feed.shift.any()


def test_alternating_mirrors_show_each_side_once_in_two_epochs() -> None:
    feed, seen = feed_of(pictures(20), 5, flip="alternating"), []
    for epoch in (1, 2, 3):
        feed.begin(7, epoch)
        sides = torch.zeros(20, dtype=torch.bool)
        sides[feed.order] = feed.mirrored
        seen.append(sides)
    assert torch.equal(seen[0], ~seen[1])
    assert torch.equal(seen[0], seen[2])
    assert 0 < int(seen[0].sum()) < 20


def test_the_statistics_of_channels_are_numpys() -> None:
    images = pictures(30).inputs
    mean, std = channel_statistics(images)
    scaled = images.double() / 255
    torch.testing.assert_close(mean.double(), scaled.mean((0, 2, 3)), rtol=0, atol=1e-7)  # rounded to float32
    torch.testing.assert_close(std.double(), scaled.std((0, 2, 3), correction=0), rtol=0, atol=1e-7)
    assert channel_statistics(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))[1] == 1


def test_every_row_is_read_once_and_the_order_is_the_epochs_own() -> None:
    feed = feed_of(pictures(23), 5)
    orders = []
    for epoch in (1, 2, 1):
        assert feed.begin(seed=3, epoch=epoch) == 4
        orders.append(torch.cat([feed(torch.tensor(step)).rows for step in range(4)]))
    assert len(orders[0].unique()) == 20
    assert torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], orders[1])
    other = feed_of(pictures(23), 5)
    other.begin(seed=4, epoch=1)
    assert not torch.equal(other.order, orders[0])


def test_a_batch_holds_what_its_rows_are() -> None:
    samples = pictures(20)
    feed = feed_of(samples, 5)
    feed.begin(0, 1)
    batch = feed(torch.tensor(2))
    assert torch.equal(batch.labels, samples.labels[batch.rows])
    assert torch.equal(batch.inputs, samples.inputs[batch.rows])
    assert torch.equal(batch.target, batch.labels)


def test_only_kept_rows_are_read() -> None:
    feed = feed_of(pictures(30), 4)
    kept = torch.arange(0, 30, 3)
    assert feed.begin(0, 1, kept) == 2
    rows = torch.cat([feed(torch.tensor(step)).rows for step in range(2)])
    assert set(rows.tolist()) <= set(kept.tolist())


@pytest.mark.parametrize("mixup", [None, Mixup(alpha=0.4)])
def test_the_parts_of_two_processes_are_the_batch_of_one(mixup: Mixup | None) -> None:
    samples = pictures(24)
    more = {"crop": 2, "flip": "random", "mixup": mixup}
    whole = feed_of(samples, 6, **more)
    parts = [feed_of(samples, 6, part=(rank, 2), **more) for rank in (0, 1)]
    for feed in (whole, *parts):
        feed.begin(5, 2)
    for step in range(4):
        one = whole(torch.tensor(step))
        two = [feed(torch.tensor(step)) for feed in parts]
        assert torch.equal(torch.cat([batch.inputs for batch in two]), one.inputs)
        for batch in two:
            assert torch.equal(batch.target, one.target)
            assert torch.equal(batch.rows, one.rows)


def test_a_mixed_batch_is_what_its_pairing_says() -> None:
    samples = pictures(12)
    mixup = Mixup(alpha=0.3)
    feed = Feed(samples, Preparation.fit("image", samples), 6, 5, crop=0, flip="none", mixup=mixup)
    feed.begin(1, 1)
    batch = feed(torch.tensor(1))
    share, partner = float(feed.share[1]), feed.partner[6:]
    plain = feed.preparation(samples.inputs[batch.rows])
    torch.testing.assert_close(batch.inputs, share * plain + (1 - share) * plain[partner])
    hard = F.one_hot(batch.labels, 5).float()
    torch.testing.assert_close(batch.target, share * hard + (1 - share) * hard[partner])
    assert 0 < share < 1


def test_inputs_are_centred_and_scaled_by_train() -> None:
    samples = pictures(50)
    prepared = Preparation.fit("image", samples)(samples.inputs)
    torch.testing.assert_close(prepared.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(prepared.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    vectors = torch.randn(4, 3)
    assert Preparation.fit("vector", Samples(vectors, torch.arange(4), torch.arange(4)))(vectors) is vectors


def test_seeds_of_neighbours_share_nothing() -> None:
    seeds = {epoch_seed(s, e, p) for s in range(5) for e in range(5) for p in ("weights", "dropout")}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**56 for seed in seeds)


def test_one_of_many_by_a_number_that_stays_where_it_is() -> None:
    values = torch.randn(7)
    assert at(values, torch.tensor(3)) == values[3]
