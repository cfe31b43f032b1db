"""Synthetic images, their best classes, and the augmentation of real ones."""

import numpy as np
import pytest
import torch

from lib.streams import stream
from lib.tasks.vision import Classifier, ImageClasses, Images, _patterns, augment, colour_moments, standardise
from lib.tasks.workload import evaluate

PLAN = ImageClasses(classes=4, side=8, channels=2, shift=1, noise=3.0, world=0)


def test_images_are_patterns_and_noise_of_unit_variance():
    drawn = PLAN.synthetic(2_000, seed=1, first=0)
    assert drawn.pixels.shape == (2_000, 2, 8, 8) and drawn.pixels.dtype == np.float32
    assert drawn.pixels.std() == pytest.approx(1, abs=0.01) and set(drawn.labels) == {0, 1, 2, 3}
    mean = drawn.pixels[drawn.labels == 2].mean(0)
    expected = _patterns(PLAN)[2].mean(0) / np.sqrt(10)
    np.testing.assert_allclose(mean, expected, atol=0.15)


def test_patterns_move_around_a_torus():
    patterns = _patterns(PLAN)
    assert patterns.shape == (4, 9, 2, 8, 8)
    np.testing.assert_array_equal(np.roll(patterns[0, 0], (1, 1), (1, 2)), patterns[0, 4])
    assert patterns[:, 4].std() == pytest.approx(1, rel=1e-4)


def test_the_likeliest_class_is_bayes_rule():
    images = PLAN.synthetic(50, seed=1, first=0).pixels
    patterns, raw = _patterns(PLAN).astype(np.float64), images.astype(np.float64) * np.sqrt(10)
    chances = np.zeros((50, 4))
    for row in range(50):
        for kind in range(4):
            for move in range(9):
                chances[row, kind] += np.exp(-np.square(raw[row] - patterns[kind, move]).sum() / 18 + 60)
    found = PLAN.class_probabilities(images)
    np.testing.assert_allclose(found, chances / chances.sum(1, keepdims=True), atol=1e-4)


def test_nothing_beats_it_and_less_noise_is_easier():
    accuracies = []
    for noise in (8.0, 3.0, 1.0):
        plan = ImageClasses(classes=4, side=8, channels=2, shift=1, noise=noise, world=0)
        drawn = plan.synthetic(2_000, seed=1, first=0)
        truth = plan.class_probabilities(drawn.pixels)
        right = truth.argmax(1) == drawn.labels
        assert abs(right.mean() - truth.max(1).mean()) < 4 * right.std() / np.sqrt(len(right)) + 1e-4
        accuracies.append(truth.max(1).mean())
    assert accuracies == sorted(accuracies) and accuracies[0] > 0.3 and accuracies[-1] > 0.99


def test_real_images_are_scaled_by_the_training_colours():
    images = np.random.default_rng(0).integers(256, size=(40, 3, 8, 8)).astype(np.uint8)
    result = standardise(images, colour_moments(images))
    np.testing.assert_allclose(result.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(result.std((0, 2, 3)), 1, atol=1e-5)


def test_augmented_images_are_windows_of_the_padded_ones():
    images = np.arange(1, 65, dtype=np.float32).reshape(1, 1, 8, 8).repeat(200, 0)
    moved = augment(images, stream(0, "augment"))
    padded = np.pad(images[0, 0], 4)
    windows = {
        picture[down : down + 8, right : right + 8].tobytes()
        for picture in (padded, padded[:, ::-1])
        for down in range(9)
        for right in range(9)
    }
    found = {picture.tobytes() for picture in moved[:, 0]}
    assert found <= windows and len(found) > 60


class Shy(Classifier):
    """Scores as many classes as `behind` above the label's."""

    def __init__(self, behind: int):
        super().__init__(0.0)
        self.behind = behind

    def forward(self, batch, rows):
        order = torch.arange(20)
        labels = batch.features["image"][:, 0, 0, 0].round().long()
        return -((labels[:, None] + self.behind - order) % 20).double()


def labelled(size, **_):
    labels = np.arange(size) % 20
    return Images(np.broadcast_to(labels[:, None, None, None], (size, 3, 4, 4)).astype(np.float32), labels)


@pytest.mark.parametrize(("behind", "top5"), [(0, 1.0), (4, 1.0), (5, 0.0)])
def test_the_five_likeliest_by_hand(behind, top5, monkeypatch):
    """A label that has the best, the fifth and the sixth score."""
    images = ImageClasses(classes=20, side=4, evaluation_samples=40, world=behind)
    monkeypatch.setattr(ImageClasses, "synthetic", lambda self, size, **about: labelled(size))
    found = evaluate(images, Shy(behind), {}, 0)
    assert found["top5"] == top5 and found["accuracy"] == (behind == 0)


def test_of_ten_classes_nothing_is_said_of_five():
    images = ImageClasses(evaluation_samples=8)
    assert "top5" not in evaluate(images, images.model(0), {}, 0)
