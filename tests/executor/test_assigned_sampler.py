"""``AssignedSampler``: every sample once, over all replicas; its state; the loss that weights give."""

from __future__ import annotations

import numpy as np
import pytest
from searcher.assignment.jobs import draw_vlm, vlm_assigner, write_samples

from semu.searcher.assignment.assigner import SampleSource

torch = pytest.importorskip("torch")

from semu.executor.assigned_sampler import AssignedSampler  # noqa: E402


@pytest.fixture
def source(tmp_path):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(300, 5))
    return SampleSource.read(vlm_assigner().job, path, 96)


def test_every_sample_is_handed_out_once(source):
    lists = [list(AssignedSampler(vlm_assigner(), source, replica)) for replica in range(2)]
    seen = sorted(number for own in lists for batch in own for number in batch)
    assert seen == list(range(3 * 96))
    assert [len(own) for own in lists] == [len(AssignedSampler(vlm_assigner(), source, 0))] * 2
    for iteration in range(3):
        mine = [n for own in lists for batch in own[8 * iteration : 8 * iteration + 8] for n in batch]
        assert sorted(mine) == list(range(96 * iteration, 96 * (iteration + 1)))


@pytest.mark.parametrize("stop", [0, 3, 8, 11])
def test_a_sampler_goes_on_where_another_stood(source, stop):
    whole = list(AssignedSampler(vlm_assigner(), source, 1))
    first = AssignedSampler(vlm_assigner(), source, 1)
    begun = iter(first)
    head = [next(begun) for _ in range(stop)]
    second = AssignedSampler(vlm_assigner(), source, 1)
    second.load_state_dict(first.state_dict())
    assert head + list(second) == whole


def test_weighted_losses_and_gradients_are_those_of_the_whole_batch(source):
    """A linear model of a sample's tokens, over replicas and microbatches of unequal tokens."""
    generator = torch.Generator().manual_seed(0)
    text = source.samples.text_tokens[:96]
    data = [torch.randn(int(count), 4, generator=generator, dtype=torch.float64) for count in text]
    weight = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    total, gradients = 0.0, []
    for replica in range(2):
        sampler = AssignedSampler(vlm_assigner(), source, replica)
        loss = torch.zeros((), dtype=torch.float64)
        for number, batch in enumerate(sampler):
            if number == 8:
                break
            tokens = torch.cat([data[n] for n in batch])
            loss = loss + sampler.loss_weight * (tokens @ weight).square().mean()
        gradients.append(torch.autograd.grad(loss, weight)[0])
        total += float(loss.detach()) / 2
    whole = (torch.cat(data) @ weight).square().mean()
    assert total == pytest.approx(float(whole.detach()), rel=1e-12)
    mean = torch.stack(gradients).mean(dim=0)
    assert np.allclose(mean.numpy(), torch.autograd.grad(whole, weight)[0].numpy(), rtol=1e-12)


def test_a_window_of_iterations_changes_places_only(source):
    """Each sample once, within the window; a sampler goes on in its middle."""
    lists = [list(AssignedSampler(vlm_assigner(), source, replica, window=2)) for replica in range(2)]
    for own in (range(0, 16), range(16, 24)):
        mine = sorted(n for replica in lists for number in own for n in replica[number])
        assert mine == list(range(96 * own.start // 8, 96 * own.stop // 8))
    first = AssignedSampler(vlm_assigner(), source, 1, window=2)
    begun = iter(first)
    head = [next(begun) for _ in range(11)]
    second = AssignedSampler(vlm_assigner(), source, 1, window=2)
    second.load_state_dict(first.state_dict())
    assert head + list(second) == lists[1]


def test_weights_go_with_the_lists(source):
    """A loader that reads ahead has them by microbatch."""
    sampler = AssignedSampler(vlm_assigner(), source, 0)
    loader = torch.utils.data.DataLoader(range(400), batch_sampler=sampler, collate_fn=list)
    assert [len(own) for own in loader] == [len(own) for own in sampler]
    weights, plain = [], AssignedSampler(vlm_assigner(), source, 0)
    assert plain.loss_weight == 1.0 and plain.assignment is None  # nothing was handed out
    for handed in plain:
        assert plain.loss_weight == handed.loss_weight
        weights.append(handed.loss_weight)
        if len(weights) == 8:
            break
    other = [
        handed.loss_weight for handed, _ in zip(AssignedSampler(vlm_assigner(), source, 1), range(8), strict=False)
    ]
    assert sum(weights) + sum(other) == pytest.approx(2)
    assert len(set(weights)) > 1
