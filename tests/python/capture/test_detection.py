"""What follows a detection network: as many candidates as data say, of which the best are looked at pair by pair."""

import pytest
import torch

import fastjit
from helpers import assert_same


def found(scores, boxes):
    """The best 20 of those above a threshold."""
    index = (scores > 0).nonzero()
    best, order = scores[scores > 0].sort(descending=True, stable=True)
    index = index[order[:20]]
    return boxes[index[:, 0]], best[:20], index[:, 1]


def keep_greedily(boxes, threshold):
    low = torch.max(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.min(boxes[:, None, 2:], boxes[None, :, 2:])
    sides = (high - low).clamp(min=0)
    both = sides[:, :, 0] * sides[:, :, 1]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    over = both / (area[:, None] + area[None, :] - both) > threshold
    keep = torch.ones(boxes.shape[0], dtype=torch.bool)
    for i in range(boxes.shape[0] - 1):
        keep[i + 1 :] &= ~(over[i, i + 1 :] & keep[i])
    return keep


def detected(scores, boxes):
    near, best, labels = found(scores, boxes)
    order = best.sort(descending=True, stable=True)[1][:10]
    near = near[order]
    near[..., 0::2].clamp_(0, 4)
    keep = keep_greedily(near, 0.3)
    kept = order[keep]
    return torch.cat((near[keep], best[kept].unsqueeze(1)), dim=1), labels[kept]


def case(count, spread=2.0):
    """So many candidates."""
    scores = -torch.ones(12, 5)
    scores.view(-1)[torch.randperm(60)[:count]] = torch.rand(count)
    corner = torch.rand(12, 2) * spread
    return scores, torch.cat((corner, corner + 0.5 + torch.rand(12, 2)), dim=1)


def test_any_count_of_candidates_is_a_hit():
    fast = fastjit.fastjit(detected)
    torch.manual_seed(0)
    for count in (30, 40, 50, 60, 31, 45, 37):
        given = case(count)
        assert_same(fast(*given), detected(*given), exact=True)
    stats = fast.stats()
    assert (stats.variants, stats.hits, dict(stats.fallbacks)) == (1, 6, {})
    assert stats.kernels > 10  # what is done with ten boxes, whose count is known, torch does no part of


def test_the_loop_over_candidates_is_kernels():
    fast = fastjit.fastjit(detected)
    torch.manual_seed(1)
    given = case(40)
    fast(*given)
    text = str(fast.inspect("ir"))
    assert text.count("update") >= 9
    assert "aten::__iand__" not in text and "aten::bitwise_and" not in text and "aten::div" not in text


@pytest.mark.parametrize("count", [0, 1, 2, 5, 10, 11, 20, 21])
def test_few_candidates(count):
    """Fewer than are looked at, and none: another path through the function, with its own program."""
    fast = fastjit.fastjit(detected)
    torch.manual_seed(count)
    for given in (case(count), case(count), case(40), case(count), case(40)):
        try:
            expected = detected(*given)
        except Exception as error:
            with pytest.raises(type(error)):
                fast(*given)
        else:
            assert_same(fast(*given), expected, exact=True)
    assert dict(fast.stats().fallbacks) == {}
    assert fast.stats().hits == 5 - fast.stats().variants


@pytest.mark.parametrize("spread", [0.0, 100.0], ids=["one kept", "all kept"])
def test_all_or_one_kept_with_ties(spread):
    fast = fastjit.fastjit(detected)
    torch.manual_seed(3)
    for _ in range(4):
        scores, boxes = case(40, spread)
        scores[scores > 0] = 0.5
        boxes = boxes[:1].expand(12, 4).clone() if spread == 0 else boxes
        assert_same(fast(scores, boxes), detected(scores, boxes), exact=True)
    assert (fast.stats().hits, dict(fast.stats().fallbacks)) == (3, {})


SLICES = {
    "the first three": lambda x: x[x > 0][:3] * 2,
    "from the second on": lambda x: x[x > 0][1:] * 2,
    "all but the last": lambda x: x[x > 0][:-1] * 2,
    "every other one": lambda x: x[x > 0][::2] * 2,
    "the first three of a longer one": lambda x: x[x > 0][:5][:3] + x[x > 0][:4][1:],
    "columns": lambda x: x[x[:, 0] > 0][:, :2] * 2,
    "rows and columns": lambda x: x[x[:, 0] > 0][:2, None, ..., 1:] + 1,
    "written": lambda x: written(x),
    "an int and a slice": lambda x: x[:, x[0] > 0][1, :2] * 2,
}


def written(x):
    y = x[x > 0]
    y[:3] *= 2
    return y


@pytest.mark.parametrize("what", SLICES)
def test_slices_ask_only_whether_they_are_the_whole(what):
    """x[:n] is no operator where there are no more than n: of all other counts one program knows."""
    fast = fastjit.fastjit(SLICES[what])
    torch.manual_seed(4)
    for _ in range(30):
        x = torch.randn(6, 6) + torch.randn(1)
        assert_same(fast(x), SLICES[what](x), exact=True)
    stats = fast.stats()
    assert (stats.hits, dict(stats.fallbacks)) == (30 - stats.variants, {})
    assert stats.variants <= 5


def test_a_size_that_was_read_is_known_from_then_on():
    def f(x):
        y = x[x > 0]
        n = y.shape[0]
        return (y[:, None] - y[None, :]).abs().exp().sum(1) + torch.arange(n)

    fast = fastjit.fastjit(f)
    torch.manual_seed(5)
    calls = [torch.randn(9) for _ in range(6)]
    for x in calls * 2:
        assert_same(fast(x), f(x))
    stats = fast.stats()
    assert stats.hits >= 6 and dict(stats.fallbacks) == {}
    assert "aten::exp" not in str(fast.inspect("ir"))


def test_what_was_read_and_is_written_later():
    def f(x):
        y = x[x > 0]
        if y.shape[0] > 2:
            y[1] = 7
            y.mul_(2)
        return y, y[:2] + 1

    fast = fastjit.fastjit(f)
    torch.manual_seed(6)
    calls = [torch.randn(5) for _ in range(6)]
    for x in calls * 2:
        assert_same(fast(x), f(x), exact=True)
    assert fast.stats().hits >= 6 and dict(fast.stats().fallbacks) == {}


MASKS = {
    "in rows": lambda m: m,
    "in columns": lambda m: m.t().contiguous().t(),
    "every other column": lambda m: m.repeat_interleave(2, dim=1)[:, ::2],
    "of three dims": lambda m: m.view(-1, 3, m.shape[1]),
    "of one dim": lambda m: m.flatten(),
}
VALUES = {
    "f32": lambda m: torch.randn(m.shape),
    "f64 in columns": lambda m: torch.randn(m.shape[::-1], dtype=torch.float64).permute(*range(m.dim() - 1, -1, -1)),
    "bool": lambda m: torch.rand(m.shape) > 0.5,
    "i16": lambda m: torch.randint(-9, 9, m.shape, dtype=torch.int16),
    "complex": lambda m: torch.randn(m.shape, dtype=torch.complex64),
    "rows of five": lambda m: torch.randn(*m.shape, 5),
    "strided rows": lambda m: torch.randn(*m.shape, 5)[..., ::2],
    "none": lambda m: torch.randn(*m.shape, 0),
}


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("kind", VALUES)
def test_elements_of_a_mask(shape, kind):
    """Whatever lies how, with none, few, many and all of them: torch's values and strides."""
    fast = fastjit.fastjit(lambda x, m: (m.nonzero(), x[m]))
    torch.manual_seed(7)
    for share in (0.03, 0.5, 0.0, 1.0, 0.97):
        mask = MASKS[shape](torch.rand(30, 37) < share)
        x = VALUES[kind](mask)
        got, expected = fast(x, mask), (mask.nonzero(), x[mask])
        assert_same(got, expected, exact=True)
        assert [t.stride() for t in got] == [t.stride() for t in expected]
    assert fast.stats().hits == 5 - fast.stats().variants and dict(fast.stats().fallbacks) == {}


def in_order_or_none(scores):
    best = scores[scores > 0]
    if best.numel() == 0:
        return best - 1
    return best.sort(descending=True, stable=True)[0][:5] * 2


def by_size(scores):
    best = scores[scores > 0]
    if best.numel() < 4:
        return best + 1
    return best * (3 if best.size(0) >= 6 else 2)


@pytest.mark.parametrize(("function", "answers"), [(in_order_or_none, 2), (by_size, 3)])
def test_a_count_that_is_only_compared_is_a_guard_on_the_answer(function, answers):
    fast = fastjit.fastjit(function)
    torch.manual_seed(0)
    counts = (9, 0, 5, 12, 7, 2, 30, 4, 0, 3, 6, 11, 5, 8)
    for count in counts:
        scores = case(count)[0]
        assert_same(fast(scores), function(scores), exact=True)
    stats = fast.stats()
    assert stats.hits >= len(counts) - 2 * answers and dict(stats.fallbacks) == {}, stats
    assert stats.variants <= 2 * answers
