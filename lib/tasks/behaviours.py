"""Synthetic users with past behaviours, whose next behaviour has a known probability.

Items belong to topics, and a user's behaviours follow Hoppe's urn. The next behaviour repeats the topic of a random earlier one,
each with weight 1; with weight `novelty` its topic is drawn from the taste of the user's group. Within a topic, items are
Zipf-distributed. Such a sequence is exchangeable: the probability of the next topic depends on the counts of past topics alone,
so the best prediction is known.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from lib.streams import stream, uniform
from lib.tasks.clicks_stream import FIELD_SHIFT, Clicks, ClickStream, bias_for_rate
from lib.tasks.sampling import alias_table, pick, zipf_probabilities

_PILOT = 16_384  # samples that set a day's bias
_FADE = 0.8  # weight of a behaviour in a click's logit, relative to the behaviour after it


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The items; an item is `topic * per_topic + rank`."""

    topics: int
    """Number of topics."""
    per_topic: int
    """Items of each topic."""
    exponent: float
    """Zipf's exponent of the items within a topic."""
    length: int
    """Most behaviours of a user; their number is uniform, from 0."""
    novelty: float
    """Weight of a new topic, relative to one past behaviour."""

    @property
    def items(self) -> int:
        return self.topics * self.per_topic

    def probabilities(self) -> np.ndarray:
        """Probability of each item if all topics are equally likely."""
        return np.tile(zipf_probabilities(self.per_topic, self.exponent), self.topics) / self.topics


class Histories(NamedTuple):
    """Past behaviours, oldest first; places after the last behaviour hold the next item."""

    watched: np.ndarray
    """int64 (samples, length) items."""
    behaviours: np.ndarray
    """int64 (samples,): number of past behaviours."""
    next_item: np.ndarray
    """int64 (samples,): the next item."""
    unrelated: np.ndarray
    """int64 (samples, length): items that do not depend on the user."""


def draw_histories(catalogue: Catalogue, taste: np.ndarray, seed: int, first: int, part: object) -> Histories:
    """Draw a history for each row of `taste`, the probabilities (samples, topics) of a new topic."""
    chances = uniform(seed, "histories", part, first=first, shape=(len(taste), 1 + 4 * (catalogue.length + 1)))
    table = alias_table(catalogue.per_topic, catalogue.exponent)
    return Histories(*_draw_history_items(chances, np.cumsum(taste, 1), catalogue.length, catalogue.novelty, *table))


def next_topic_probabilities(catalogue: Catalogue, past: Histories, taste: np.ndarray) -> np.ndarray:
    """Probabilities (samples, topics) of the next topic, given the history."""
    counts = np.zeros_like(taste)
    real = np.arange(catalogue.length) < past.behaviours[:, None]
    np.add.at(counts, (np.nonzero(real)[0], past.watched[real] // catalogue.per_topic), 1)
    return (counts + catalogue.novelty * taste) / (past.behaviours[:, None] + catalogue.novelty)


@dataclass(frozen=True, kw_only=True)
class BehaviourStream:
    """Clicks that depend on a profile, a `ClickStream`, and on the share of past behaviours with the target's topic.

    Half of the targets are the user's next item, half do not depend on the user. The logit is the profile's plus `affinity`
    times that share, in which a behaviour counts 1.25 times the one before it. The ids of a sample are the profile's fields,
    then item and topic of the target, of `length` behaviours, and of `length` items that the user did not choose.
    """

    profile: ClickStream
    catalogue: Catalogue
    affinity: float
    """Increase of the logit if all past behaviours have the target's topic."""

    @property
    def columns(self) -> int:
        return self.profile.fields + 2 * (1 + 2 * self.catalogue.length)

    def draw(self, size: int, *, seed: int, day: int, first: int = 0, part: object = "train") -> Clicks:
        """Draw samples of a day, from place `first` on of the endless stream (seed, part)."""
        plain = self.profile.draw(size, seed=seed, day=day, first=first, part=part)
        return self._extend(plain, _bias(self, day), seed, first, part)

    def _extend(self, plain: Clicks, bias: float, seed: int, first: int, part: object) -> Clicks:
        catalogue, size = self.catalogue, len(plain.labels)
        past = draw_histories(catalogue, np.full((size, catalogue.topics), 1 / catalogue.topics), seed, first, part)
        random = uniform(seed, "behaviours", part, first=first, shape=(size, 2))
        target = np.where(random[:, 0] < 0.5, past.next_item, past.unrelated[:, -1])
        real = np.arange(catalogue.length) < past.behaviours[:, None]
        weights = real * _FADE ** (past.behaviours[:, None] - 1 - np.arange(catalogue.length))
        agree = past.watched // catalogue.per_topic == target[:, None] // catalogue.per_topic
        share = (weights * agree).sum(1) / np.maximum(weights.sum(1), 1e-9)
        logits = plain.logits + bias + self.affinity * share
        items = np.concatenate((target[:, None], past.watched, past.unrelated), 1)
        both = np.stack((items, items // catalogue.per_topic), 2)
        both += np.array([self.profile.fields, self.profile.fields + 1], np.int64) << FIELD_SHIFT
        return Clicks(
            ids=np.concatenate((plain.ids, both.reshape(size, -1)), 1),
            dense=plain.dense,
            labels=(random[:, 1] < 1 / (1 + np.exp(-logits))).astype(np.float32),
            logits=logits,
            behaviours=past.behaviours,
        )


@functools.lru_cache(maxsize=8)
def _bias(behaviours: BehaviourStream, day: int) -> float:
    """The bias that keeps the base rate on a day."""
    world = behaviours.profile.world
    plain = behaviours.profile.draw(_PILOT, seed=world, day=day, part="pilot")
    logits = behaviours._extend(plain, 0.0, world, 0, "pilot").logits
    return bias_for_rate(logits, behaviours.profile.base_rate)


@dataclass(frozen=True, kw_only=True)
class WatchStream:
    """Users of a few groups, and the item that each watches next. The groups' tastes drift over the days."""

    catalogue: Catalogue
    groups: int
    """Number of groups, the only profile field."""
    spread: float
    """Standard deviation of a group's logits over topics; with 0 all groups are alike."""
    drift: float
    """Radians by which the tastes drift each day."""
    world: int
    """Seed of the tastes."""

    def draw_viewers(
        self, size: int, *, seed: int, day: int, first: int = 0, part: object = "train"
    ) -> tuple[np.ndarray, np.ndarray, Histories]:
        """Draw groups, tastes and histories of a day, from place `first` on of the endless stream (seed, part)."""
        group = (uniform(seed, "groups", part, first=first, shape=(size, 1))[:, 0] * self.groups).astype(np.int64)
        taste = _group_tastes(self, day)[group]
        return group, taste, draw_histories(self.catalogue, taste, seed, first, part)


@functools.lru_cache(maxsize=8)
def _group_tastes(watch: WatchStream, day: int) -> np.ndarray:
    a, b = stream(watch.world, "tastes").standard_normal((2, watch.groups, watch.catalogue.topics))
    logits = watch.spread * (a * math.cos(watch.drift * day) + b * math.sin(watch.drift * day))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@numba.njit(cache=True, nogil=True)
def _draw_history_items(uniform, taste, length, novelty, keep, alias):
    size, topics, per_topic = len(uniform), taste.shape[1], len(keep)
    watched, unrelated = np.empty((size, length), np.int64), np.empty((size, length), np.int64)
    behaviours, next_item = np.empty(size, np.int64), np.empty(size, np.int64)
    for n in range(size):
        count = int(uniform[n, 0] * (length + 1))
        behaviours[n] = count
        for place in range(length + 1):
            choice, which, other, regardless = uniform[n, 1 + 4 * place : 5 + 4 * place]
            if place < length:
                unrelated[n, place] = int(other * topics) * per_topic + pick(regardless, keep, alias)
            if place > count:
                watched[n, place - 1] = next_item[n]
                continue
            drawn = choice * (place + novelty)
            if drawn < place:
                topic = watched[n, int(drawn)] // per_topic
            else:
                within = (drawn - place) / novelty * taste[n, -1]
                topic = min(np.searchsorted(taste[n], within, side="right"), topics - 1)
            item = topic * per_topic + pick(which, keep, alias)
            if place == count:
                next_item[n] = item
                if place < length:
                    watched[n, place] = item
            else:
                watched[n, place] = item
    return watched, behaviours, next_item, unrelated
