"""BERT on questions about a passage, planted or real."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge

from lib.cluster.spec import Work
from lib.data import epochs, source
from lib.data.batch import Batch
from lib.data.questions import (
    Cut,
    PlantedQuestions,
    Question,
    Questions,
    Words,
    best_spans,
    cut,
    exact,
    normal,
    overlap,
)
from lib.models.text import BertQA, PretrainedQA, PretrainedWords, QuestionAnswering
from lib.options.checked import Count, Natural, Share
from lib.store.optim import SGD, Adam, Optimizer
from lib.streams import stream
from lib.workloads.base import Workload, dense_parameters

_CHUNK = 64  # questions evaluated at once


@dataclass(frozen=True, kw_only=True)
class Answers(Workload):
    """Questions, planted (lib.data.questions) or of a data folder, whose passages are cut into words of their own vocabulary.

    Real questions come in epochs, each in an order of its own that belongs to (seed, epoch).
    """

    name: str = "questions-synthetic"

    samples: Count = 16_000
    batch_size: Count = 16
    dense_optimizer: Optimizer = field(default=Adam(lr=1e-3))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    weights: str | None = None
    """Folder of a pretrained BERT, as transformers saves it; without it the network starts from random weights."""
    dim: Count = 32
    """Width of a word's state."""
    layers: Count = 2
    """Layers of the encoder."""
    heads: Count = 2
    """Heads of its attention."""
    vocabulary: Annotated[int, Ge(8)] = 8_000
    """Most words of a real data set's vocabulary; the others are unknown."""
    length: Annotated[int, Ge(8)] = 192
    """Places for a real question and its passage."""
    data: str | None = None
    """Folder of real questions; without it they are planted, by the options from `kinds` to `ambiguity`."""
    kinds: Annotated[int, Ge(2)] = 8
    """Kinds of words that are asked for."""
    words: Count = 20
    """Words of each kind."""
    slots: Count = 8
    """Slots of four words in a passage."""
    distractors: Natural = 3
    """Stretches of other kinds in a passage."""
    ambiguity: Share = 0.2
    """Share of the questions that have two equally good answers, of which one is meant."""
    evaluation_samples: Count = 1_000
    """Most questions of the evaluation."""

    def __post_init__(self):
        if self.dim % self.heads:
            self._reject("heads", f"a divisor of dim ({self.dim})")
        if self.distractors + 2 > self.slots:
            self._reject("distractors", f"at most slots - 2 ({self.slots - 2})")
        if self.weights and not self.data:
            self._reject(
                "weights", "None without data: planted questions are in no language that a BERT was trained on"
            )

    def model(self, seed: int) -> QuestionAnswering:
        if self.weights:
            return PretrainedQA(self.weights)
        words, length = (
            (len(_words(self)), self.length) if self.data else (self._planted.vocabulary, self._planted.length)
        )
        return BertQA(
            words=words,
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            inner=4 * self.dim,
            length=length,
            seed=seed,
        )

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        if not self.data:
            return _batch(self._planted.draw(size, seed=seed, first=first)[0], index)
        pool = _cut(self).questions
        rows = epochs.chosen(seed, first, size, len(pool.tokens))
        return _batch(Questions(*(part[rows] for part in pool)), index)

    def work(self) -> Work:
        """Six operations for each parameter of the encoder and each place, and the attention's products."""
        length = self.length if self.data else self._planted.length
        layer = 12 * self.dim**2 + 2 * length * self.dim
        states = self.batch_size * length * self.dim * (1 + 12 * self.layers)
        return Work(
            flops=6.0 * self.batch_size * length * self.layers * layer, bytes=12.0 * (dense_parameters(self) + states)
        )

    def evaluate(
        self, model: QuestionAnswering, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """em and f1, by SQuAD's rules; planted questions have `em_ceiling`, what knowing the truth would reach."""
        held_out = _evaluation(self, seed)
        pool = held_out.questions
        scores = [model(part, rows).cpu().numpy() for part in _batch(pool, 0).parts(_CHUNK)]
        spans = best_spans(np.concatenate(scores), held_out.begins, pool.sizes)
        given = [held_out.read(row, *span) for row, span in enumerate(spans.tolist())]
        pairs = list(zip(given, held_out.right, strict=True))
        result = {
            "em": float(np.mean([exact(*pair) for pair in pairs])),
            "f1": float(np.mean([overlap(*pair) for pair in pairs])),
        }
        return result if held_out.ceiling is None else result | {"em_ceiling": held_out.ceiling}

    @functools.cached_property
    def _planted(self) -> PlantedQuestions:
        return self.plan(PlantedQuestions)


class _HeldOutQuestions(NamedTuple):
    questions: Questions
    begins: np.ndarray
    right: list[list[list]]
    """Of each question, the words of all right answers."""
    ceiling: float | None
    texts: list[tuple[str, list[tuple[int, int]]]] | None
    """Of each real question, the passage and where its words stand."""

    def read(self, row: int, first: int, last: int) -> list:
        """The words of a stretch."""
        if self.texts is None:
            return self.questions.tokens[row, first : last + 1].tolist()
        passage, places = self.texts[row]
        begin = int(self.begins[row])
        return normal(passage[places[first - begin][0] : places[last - begin][1]])


@functools.lru_cache(maxsize=4)
def _evaluation(workload: Answers, seed: int) -> _HeldOutQuestions:
    if not workload.data:
        size = workload.evaluation_samples
        questions, chance = workload._planted.draw(size, seed=seed, first="evaluation")
        spans = questions.spans.tolist()
        right = [[row[a : b + 1].tolist()] for row, (a, b) in zip(questions.tokens, spans, strict=True)]
        return _HeldOutQuestions(questions, np.full(size, 3), right, float(chance.mean()), None)
    asked = source.questions(workload.data).test
    chosen = np.sort(stream(0, "judged").permutation(len(asked))[: workload.evaluation_samples])
    asked = [asked[place] for place in chosen.tolist()]
    questions, offsets, begins = cut(_words(workload), asked, workload.length, around=False)
    right = [[normal(answer) for answer in question.answers] for question in asked]
    texts = [(question.passage, places) for question, places in zip(asked, offsets, strict=True)]
    return _HeldOutQuestions(questions, begins, right, None, texts)


@functools.lru_cache(maxsize=2)
def _words(workload: Answers) -> Words | PretrainedWords:
    if workload.weights:
        return PretrainedWords(workload.weights)
    asked: list[Question] = source.questions(workload.data).train
    passages = dict.fromkeys(question.passage for question in asked)
    return Words([*passages, *(question.question for question in asked)], workload.vocabulary)


@functools.lru_cache(maxsize=2)
def _cut(workload: Answers) -> Cut:
    return cut(_words(workload), source.questions(workload.data).train, workload.length, around=True)


def _batch(questions: Questions, index: int) -> Batch:
    features = {"token": questions.tokens, "segment": questions.segments, "tokens": questions.sizes}
    return Batch.of(index=index, raw={}, size=len(questions.tokens), features=features, labels=questions.spans)
