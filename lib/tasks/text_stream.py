"""Questions whose answer is a stretch of a passage: synthetic ones, and real ones as numbered words."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lib.streams import stream
from lib.tasks.prepared_datasets import Partitions, split_parts

PAD, CLS, SEP, UNKNOWN = range(4)
"""The numbers of the special words in every vocabulary."""

WORD = re.compile(r"\w+|[^\w\s]")


class Questions(NamedTuple):
    """[CLS] question [SEP] passage [SEP], padded."""

    tokens: np.ndarray
    """int64 (samples, length)."""
    segments: np.ndarray
    """int64 (samples, length): 1 in the passage."""
    sizes: np.ndarray
    """int64 (samples,): places without the padding."""
    spans: np.ndarray
    """int64 (samples, 2): first and last place of the answer."""


class Question(NamedTuple):
    """A real question."""

    question: str
    passage: str
    answers: tuple[str, ...]
    """All correct answers; the first is at `start`."""
    start: int
    """Position of the first answer in the passage, in characters."""


@dataclass(frozen=True, kw_only=True)
class QuestionStream:
    """Synthetic questions: a question names a kind of words, and the answer is the stretch of such words in the passage.

    The passage has slots. Some hold one to three words of some kind, the others only filler. With probability `ambiguity` two
    stretches are of the right kind, and either is the answer with equal probability.
    """

    kinds: int
    """Kinds of words."""
    words: int
    """Words of each kind, and filler words."""
    slots: int
    """Slots of four words in a passage."""
    distractors: int
    """Stretches of other kinds."""
    ambiguity: float
    """Share of the questions with two stretches."""

    @property
    def length(self) -> int:
        return 4 * self.slots + 4

    @property
    def vocabulary(self) -> int:
        return 4 + self.kinds + (self.kinds + 1) * self.words

    def draw(self, size: int, *, seed: int, first: object) -> tuple[Questions, np.ndarray]:
        """Samples, and for each the probability that the best possible answer is correct."""
        generator = stream(seed, "questions", first)
        rows = np.arange(size)[:, None]
        asked = generator.integers(self.kinds, size=size)
        order = np.argsort(generator.random((size, self.slots)), axis=1)[:, : 2 + self.distractors]
        kinds = (asked[:, None] + 1 + generator.integers(self.kinds - 1, size=order.shape)) % self.kinds
        kinds[:, 0] = asked
        twice = generator.random(size) < self.ambiguity
        kinds[twice, 1] = asked[twice]
        widths = generator.integers(1, 4, size=order.shape)
        fillers = 4 + self.kinds + self.kinds * self.words
        passage = fillers + generator.integers(self.words, size=(size, self.slots, 4))
        within = (
            4 + self.kinds + kinds[:, :, None] * self.words + generator.integers(self.words, size=(*order.shape, 4))
        )
        inside = np.arange(4) < widths[:, :, None]
        passage[rows, order] = np.where(inside, within, passage[rows, order])
        start = 3 + 4 * order[:, 0]
        ends = np.full((size, 1), SEP)
        question = np.stack((np.full(size, CLS), 4 + asked, np.full(size, SEP)), 1)
        tokens = np.concatenate((question, passage.reshape(size, -1), ends), 1)
        segments = np.zeros_like(tokens)
        segments[:, 3:] = 1
        spans = np.stack((start, start + widths[:, 0] - 1), 1)
        return Questions(tokens, segments, np.full(size, self.length), spans), np.where(twice, 0.5, 1.0)


class Vocabulary:
    """A vocabulary of whole words, made from texts."""

    pad, first, end = PAD, CLS, SEP

    def __init__(self, texts: Iterable[str], size: int):
        counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
        # The commonest words first; ties in alphabetical order, whatever the order of the texts.
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - 4]
        self._place = {word: 4 + place for place, word in enumerate(kept)}

    def __len__(self) -> int:
        return 4 + len(self._place)

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The numbers of a text's words, and where each word begins and ends."""
        matches = list(WORD.finditer(text))
        return [self._place.get(match[0].lower(), UNKNOWN) for match in matches], [match.span() for match in matches]


class EncodedQuestions(NamedTuple):
    """Real questions as numbered words."""

    questions: Questions
    offsets: list[list[tuple[int, int]]]
    """For each sample, where the passage's words begin and end in its text; the first word is at place `begins`."""
    begins: np.ndarray
    """int64 (samples,)."""


def encode_questions(
    words: Vocabulary, questions: Sequence[Question], length: int, *, around: bool
) -> EncodedQuestions:
    """Make samples of one length. A longer passage loses its end, or with `around`, as in training, both ends around the answer.
    A question is at most a third of the length."""
    tokens, segments = np.full((len(questions), length), words.pad), np.zeros((len(questions), length), np.int64)
    sizes, spans = np.empty(len(questions), np.int64), np.zeros((len(questions), 2), np.int64)
    offsets, begins = [], np.empty(len(questions), np.int64)
    passages: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
    for row, (question, passage, answers, start) in enumerate(questions):
        asked = words.encode(question)[0][: length // 3]
        if passage not in passages:
            passages[passage] = words.encode(passage)
        ids, places = passages[passage]
        room, end = length - len(asked) - 3, start + len(answers[0])
        inside = [at for at, (begin, stop) in enumerate(places) if stop > start and begin < end] or [0]
        first = max(0, min(inside[0] - room // 2, len(ids) - room)) if around and inside[-1] >= room else 0
        ids, places = ids[first : first + room], places[first : first + room]
        begin = len(asked) + 2
        whole = [words.first, *asked, words.end, *ids, words.end]
        tokens[row, : len(whole)], segments[row, begin : len(whole)] = whole, 1
        sizes[row], begins[row] = len(whole), begin
        spans[row] = np.minimum(begin + np.array([inside[0], inside[-1]]) - first, len(whole) - 1)
        offsets.append(places)
    return EncodedQuestions(Questions(tokens, segments, sizes, spans), offsets, begins)


def best_spans(scores: np.ndarray, begins: np.ndarray, sizes: np.ndarray, longest: int = 30) -> np.ndarray:
    """The stretch (samples, 2) of each passage with the largest sum of its two ends' scores (samples, 2, length)."""
    places = np.arange(scores.shape[2])
    outside = (places < begins[:, None]) | (places >= sizes[:, None] - 1)
    first, last = (np.where(outside, -np.inf, scores[:, side]) for side in (0, 1))
    reach = (places[None] >= places[:, None]) & (places[None] < places[:, None] + longest)
    spans = np.empty((len(scores), 2), np.int64)
    for row in range(len(scores)):
        sums = np.where(reach, first[row][:, None] + last[row][None], -np.inf)
        spans[row] = np.unravel_index(sums.argmax(), sums.shape)
    return spans


def exact_match(answer: Sequence, right: Iterable[Sequence]) -> float:
    """1 if the words equal a correct answer, else 0."""
    return float(any(list(answer) == list(one) for one in right))


def f1_score(answer: Sequence, right: Iterable[Sequence]) -> float:
    """The largest F1 of the bags of words over the correct answers; two empty answers agree."""
    return max(_f1(list(answer), list(one)) for one in right)


def _f1(answer: list, right: list) -> float:
    if not answer or not right:
        return float(answer == right)
    common = sum((Counter(answer) & Counter(right)).values())
    return 2 * common / (len(answer) + len(right))


ARTICLES = ("a", "an", "the")


def normalise_answer(text: str) -> list[str]:
    """The words of an answer by SQuAD's rules: lower case, no punctuation, no articles."""
    letters = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return [word for word in letters.split() if word not in ARTICLES]


_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class RealQuestions(NamedTuple):
    train: list[Question]
    test: list[Question]


@functools.lru_cache(maxsize=2)
def read_questions(path: str) -> RealQuestions:
    """Read all questions and their passages into memory."""
    from pyarrow import parquet

    found = Partitions(path, "questions")
    parts = {}
    for split in found.names:
        rows = []
        for file in found.files(split, "rows.parquet"):
            table = parquet.read_table(file)
            columns = (table[name].to_pylist() for name in ("question", "context", "answers", "starts"))
            rows += [Question(q, c, tuple(a), s[0]) for q, c, a, s in zip(*columns, strict=True)]
        parts[split] = (rows,)
    (train,), (test,) = split_parts(path, parts, "train", "dev")
    return RealQuestions(train, test)
