"""Synthetic users who did something before, with a planted truth.

Items belong to topics, and a user's behaviours follow Hoppe's urn: the next one repeats the topic of a behaviour drawn from
those before it, or, with a weight of `novelty` against one for each behaviour, has a new topic by the taste of the user's group.
Within a topic items are Zipf-distributed. Such a sequence is exchangeable, so the chance of the next topic depends on how often
each has come up, in whatever order: all that is known of the user is in the behaviours, and the best prediction is known.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from lib.streams import stream, uniform
from lib.tasks.clicks_stream import FIELD_SHIFT, Clicks, ClickStream, shift
from lib.tasks.sampling import alias_table, pick, probabilities

_PILOT = 16_384  # samples that set a day's shift
_FADE = 0.8  # a behaviour's weight in the click's truth, against that of the next


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What there is to choose from: item `topic * per_topic + rank`."""

    topics: int
    """Number of topics."""
    per_topic: int
    """Items of each."""
    exponent: float
    """Zipf's exponent of the items within a topic."""
    length: int
    """Most behaviours of a user; their number is uniform from 0 on."""
    novelty: float
    """How readily a user turns to a new topic."""

    @property
    def items(self) -> int:
        return self.topics * self.per_topic

    def chances(self) -> np.ndarray:
        """Chance of each item where all topics are equally likely."""
        return np.tile(probabilities(self.per_topic, self.exponent), self.topics) / self.topics


class Histories(NamedTuple):
    """What users did, oldest first; the places after the last behaviour hold the next item."""

    watched: np.ndarray
    """int64 (samples, length) items."""
    behaviours: np.ndarray
    """int64 (samples,): how many of them are real."""
    following: np.ndarray
    """int64 (samples,): the next item."""
    passed: np.ndarray
    """int64 (samples, length): items drawn regardless of the user."""


def histories(catalogue: Catalogue, taste: np.ndarray, seed: int, first: int, of: object) -> Histories:
    """One history for each row of `taste`, the chances (samples, topics) of a new topic."""
    chances = uniform(seed, "histories", of, first=first, shape=(len(taste), 1 + 4 * (catalogue.length + 1)))
    table = alias_table(catalogue.per_topic, catalogue.exponent)
    return Histories(*_urn(chances, np.cumsum(taste, 1), catalogue.length, catalogue.novelty, *table))


def next_topic(catalogue: Catalogue, past: Histories, taste: np.ndarray) -> np.ndarray:
    """The chances (samples, topics) of the next behaviour's topic, given those before it."""
    counts = np.zeros_like(taste)
    real = np.arange(catalogue.length) < past.behaviours[:, None]
    np.add.at(counts, (np.nonzero(real)[0], past.watched[real] // catalogue.per_topic), 1)
    return (counts + catalogue.novelty * taste) / (past.behaviours[:, None] + catalogue.novelty)


class Remembered(NamedTuple):
    """A block of samples as in lib.tasks.clicks_stream.Clicks, with what their users did before among the ids."""

    ids: np.ndarray
    dense: np.ndarray
    labels: np.ndarray
    logits: np.ndarray
    behaviours: np.ndarray
    """int64 (samples,): how many of a sample's places for behaviours are filled."""


@dataclass(frozen=True, kw_only=True)
class BehaviourStream:
    """Clicks that depend on a profile, as in lib.tasks.clicks_stream, and on how the target's topic agrees with past behaviours.

    Half of the targets are the user's next item, half are drawn regardless of the user. The logit adds to the profile's
    `affinity` times the share of past behaviours with the target's topic, where each counts 1.25 times the one before it.
    A sample's ids: the profile's fields; the target's item and topic; the same of `length` behaviours; and of `length` items
    that the user passed over.
    """

    profile: ClickStream
    catalogue: Catalogue
    affinity: float
    """What a history of nothing but the target's topic adds to the logit."""

    @property
    def columns(self) -> int:
        return self.profile.fields + 2 * (1 + 2 * self.catalogue.length)

    def draw(self, size: int, *, seed: int, day: int, first: int = 0, of: object = "train") -> Remembered:
        """Samples from place `first` on of the endless stream (seed, of), as they are on that day."""
        plain = self.profile.draw(size, seed=seed, day=day, first=first, of=of)
        return self._extend(plain, _shift(self, day), seed, first, of)

    def _extend(self, plain: Clicks, bias: float, seed: int, first: int, of: object) -> Remembered:
        catalogue, size = self.catalogue, len(plain.labels)
        past = histories(catalogue, np.full((size, catalogue.topics), 1 / catalogue.topics), seed, first, of)
        random = uniform(seed, "behaviours", of, first=first, shape=(size, 2))
        target = np.where(random[:, 0] < 0.5, past.following, past.passed[:, -1])
        real = np.arange(catalogue.length) < past.behaviours[:, None]
        weights = real * _FADE ** (past.behaviours[:, None] - 1 - np.arange(catalogue.length))
        agree = past.watched // catalogue.per_topic == target[:, None] // catalogue.per_topic
        share = (weights * agree).sum(1) / np.maximum(weights.sum(1), 1e-9)
        logits = plain.logits + bias + self.affinity * share
        items = np.concatenate((target[:, None], past.watched, past.passed), 1)
        both = np.stack((items, items // catalogue.per_topic), 2)
        both += np.array([self.profile.fields, self.profile.fields + 1], np.int64) << FIELD_SHIFT
        return Remembered(
            ids=np.concatenate((plain.ids, both.reshape(size, -1)), 1),
            dense=plain.dense,
            labels=(random[:, 1] < 1 / (1 + np.exp(-logits))).astype(np.float32),
            logits=logits,
            behaviours=past.behaviours,
        )


@functools.lru_cache(maxsize=8)
def _shift(behaviours: BehaviourStream, day: int) -> float:
    """What keeps the day's base rate."""
    world = behaviours.profile.world
    plain = behaviours.profile.draw(_PILOT, seed=world, day=day, of="pilot")
    logits = behaviours._extend(plain, 0.0, world, 0, "pilot").logits
    return shift(logits, behaviours.profile.base_rate)


@dataclass(frozen=True, kw_only=True)
class WatchStream:
    """Users of a few groups and the item that they watch next. The groups' tastes turn with the days, as clicks' teachers do."""

    catalogue: Catalogue
    groups: int
    """Number of groups: the one profile field."""
    spread: float
    """Standard deviation of a group's logits over topics; 0: all groups are alike."""
    drift: float
    """Radians by which the tastes turn each day."""
    world: int
    """Seed of the tastes."""

    def draw(
        self, size: int, *, seed: int, day: int, first: int = 0, of: object = "train"
    ) -> tuple[np.ndarray, np.ndarray, Histories]:
        """Each sample's group, its taste and its history, from place `first` on of the endless stream (seed, of)."""
        group = (uniform(seed, "groups", of, first=first, shape=(size, 1))[:, 0] * self.groups).astype(np.int64)
        taste = _tastes(self, day)[group]
        return group, taste, histories(self.catalogue, taste, seed, first, of)


@functools.lru_cache(maxsize=8)
def _tastes(watch: WatchStream, day: int) -> np.ndarray:
    a, b = stream(watch.world, "tastes").standard_normal((2, watch.groups, watch.catalogue.topics))
    logits = watch.spread * (a * math.cos(watch.drift * day) + b * math.sin(watch.drift * day))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@numba.njit(cache=True, nogil=True)
def _urn(uniform, taste, length, novelty, keep, alias):
    size, topics, per_topic = len(uniform), taste.shape[1], len(keep)
    watched, passed = np.empty((size, length), np.int64), np.empty((size, length), np.int64)
    behaviours, following = np.empty(size, np.int64), np.empty(size, np.int64)
    for n in range(size):
        count = int(uniform[n, 0] * (length + 1))
        behaviours[n] = count
        for place in range(length + 1):
            choice, which, other, regardless = uniform[n, 1 + 4 * place : 5 + 4 * place]
            if place < length:
                passed[n, place] = int(other * topics) * per_topic + pick(regardless, keep, alias)
            if place > count:
                watched[n, place - 1] = following[n]
                continue
            drawn = choice * (place + novelty)
            if drawn < place:
                topic = watched[n, int(drawn)] // per_topic
            else:
                within = (drawn - place) / novelty * taste[n, -1]
                topic = min(np.searchsorted(taste[n], within, side="right"), topics - 1)
            item = topic * per_topic + pick(which, keep, alias)
            if place == count:
                following[n] = item
                if place < length:
                    watched[n, place] = item
            else:
                watched[n, place] = item
    return watched, behaviours, following, passed
