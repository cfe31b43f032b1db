"""Question answering with BERT (Devlin et al., 2019): where in a passage does the answer begin, and where does it end?

`BertQA` starts from random weights. Its parameters have the names and the meaning of Hugging Face's `BertForQuestionAnswering`,
as a test shows. `PretrainedQA` wraps that class with weights from a local folder; it needs the extra `text`.

`batch.features` has `token` and `segment` (samples, length) and `tokens`, the number of a sample's real places. Scores have the
shape (samples, 2, length): each place's logit as the beginning and as the end. `batch.labels` (samples, 2) has both places.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.errors import BadOption, LockstepError
from lib.options.checked import Count, Natural, Share, Text
from lib.store.optim import SGD, Adam, Optimizer
from lib.streams import stream
from lib.tasks.flat_model import Batch
from lib.tasks.layers import generator
from lib.tasks.prepared_datasets import Partitions, train_and_test_columns
from lib.tasks.sampling import epoch_rows
from lib.tasks.workload import Workload, dense_parameters

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


@functools.lru_cache(maxsize=2)
def read_questions(path: str) -> tuple[list[Question], list[Question]]:
    """Read all questions and their passages into memory: those to train on, and those of the evaluation."""
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
    (train,), (test,) = train_and_test_columns(path, parts, "train", "dev")
    return train, test


EPS = 1e-12


class QuestionAnswering(nn.Module):
    """Scores of real places only; the loss is the mean of the beginning's and the end's cross-entropy over the places."""

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        tokens, sizes = batch.features["token"], batch.features["tokens"]
        real = torch.arange(tokens.shape[1], device=tokens.device) < sizes.unsqueeze(1)
        scores = self.scores(tokens, batch.features["segment"], real)
        return scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())


class BertQA(QuestionAnswering):
    """A BERT encoder without dropout, and a linear layer for the logits of beginning and end."""

    def __init__(self, *, words: int, dim: int, layers: int, heads: int, inner: int, length: int, seed: int):
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = Embeddings(words, dim, length)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(EncoderLayer(dim, heads, inner) for _ in range(layers))
        self.qa_outputs = _uninitialised(nn.Linear, dim, 2)
        initialise(self, dim, seed)

    def scores(self, tokens: Tensor, segments: Tensor, real: Tensor) -> Tensor:
        states = self.bert.embeddings(tokens, segments)
        for layer in self.bert.encoder.layer:
            states = layer(states, real[:, None, None])
        return self.qa_outputs(states).transpose(1, 2)


class Embeddings(nn.Module):
    """Word, position and segment, added and normalised."""

    def __init__(self, words: int, dim: int, length: int):
        super().__init__()
        self.word_embeddings = _uninitialised(nn.Embedding, words, dim)
        self.position_embeddings = _uninitialised(nn.Embedding, length, dim)
        self.token_type_embeddings = _uninitialised(nn.Embedding, 2, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + places + self.token_type_embeddings(segments))


class EncoderLayer(nn.Module):
    """Attention and a two-layer network, each added to its input and then normalised."""

    def __init__(self, dim: int, heads: int, inner: int):
        super().__init__()
        self.heads = heads
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, _uninitialised(nn.Linear, dim, dim))
        self.attention.output = Residual(dim, dim)
        self.intermediate = nn.Module()
        self.intermediate.dense = _uninitialised(nn.Linear, dim, inner)
        self.output = Residual(inner, dim)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        project = self.attention.self
        query, key, value = (
            layer(states).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (project.query, project.key, project.value)
        )
        met = F.scaled_dot_product_attention(query, key, value, attn_mask=real).transpose(1, 2).flatten(2)
        states = self.attention.output(met, states)
        return self.output(F.gelu(self.intermediate.dense(states)), states)


class Residual(nn.Module):
    def __init__(self, inputs: int, dim: int):
        super().__init__()
        self.dense = _uninitialised(nn.Linear, inputs, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, change: Tensor, states: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(change) + states)


class PretrainedQA(QuestionAnswering):
    """Hugging Face's BERT with weights from a local folder; nothing is downloaded. Dropout is off, so a step is pure."""

    def __init__(self, folder: str | Path):
        super().__init__()
        transformers = import_extra("transformers")
        if not (Path(folder) / "config.json").is_file():
            raise BadOption(f"{folder} holds no config.json; expected the folder of a BERT that transformers saved")
        self.network = transformers.BertForQuestionAnswering.from_pretrained(folder, local_files_only=True).eval()

    def scores(self, tokens: Tensor, segments: Tensor, real: Tensor) -> Tensor:
        found = self.network(input_ids=tokens, token_type_ids=segments, attention_mask=real.long())
        return torch.stack((found.start_logits, found.end_logits), 1)


class PretrainedVocabulary:
    """The word pieces of a pretrained BERT, with the interface of `Vocabulary`."""

    def __init__(self, folder: str | Path):
        transformers = import_extra("transformers")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not self._tokenizer.is_fast:
            raise BadOption(f"{folder}: its tokenizer cannot say where in a text its pieces stand; expected a fast one")
        special = [self._tokenizer.pad_token_id, self._tokenizer.cls_token_id, self._tokenizer.sep_token_id]
        self.pad, self.first, self.end = special

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        pieces = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return pieces["input_ids"], pieces["offset_mapping"]


def import_extra(name: str):
    """Import a package of the extra `text`."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LockstepError(f"weights from a folder need {name} ({error}): pip install 'lockstep[text]'") from error


def initialise(model: nn.Module, dim: int, seed: int) -> None:
    """Set BERT's initial weights: biases 0, matrices normal with deviation 0.02 at its width of 768. A narrower network gets
    larger weights, so that a layer's output has the same size."""
    stream, spread = generator(seed), 0.02 * math.sqrt(768 / dim)
    for name, parameter in model.named_parameters():
        if "LayerNorm" not in name:
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0, spread, generator=stream)
            else:
                nn.init.zeros_(parameter)


def _uninitialised(kind: type[nn.Module], *sizes: int) -> nn.Module:
    """A layer without initial weights, which torch would draw from its global random stream."""
    return nn.utils.skip_init(kind, *sizes)


_CHUNK = 64  # questions evaluated at once


@dataclass(frozen=True, kw_only=True)
class Answers(Workload):
    """Question answering on real or synthetic questions.

    Real questions come in epochs, each in its own random order; without `weights` their words are the vocabulary.
    """

    name: str = "questions-synthetic"
    synthetic_only: ClassVar[frozenset[str]] = frozenset({"kinds", "words", "slots", "distractors", "ambiguity"})

    samples: Count = 16_000
    batch_size: Count = 16
    dense_optimizer: Optimizer = field(default=Adam(lr=1e-3))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    weights: str | None = None
    """Folder of a pretrained BERT, as transformers saves it; without it, initial weights are random."""
    dim: Count = 32
    """Width of a word's state."""
    layers: Count = 2
    """Layers of the encoder."""
    heads: Count = 2
    """Heads of its attention."""
    vocabulary: Annotated[int, Ge(8)] = 8_000
    """Most words of the vocabulary of real questions; other words are unknown."""
    length: Annotated[int, Ge(8)] = 192
    """Places for a real question and its passage."""
    data: Text | None = None
    """Folder of real questions; without it they are synthetic, by the options from `kinds` to `ambiguity`."""
    kinds: Annotated[int, Ge(2)] = 8
    """Kinds of words."""
    words: Count = 20
    """Words of each kind."""
    slots: Count = 8
    """Slots of four words in a passage."""
    distractors: Natural = 3
    """Stretches of other kinds in a passage."""
    ambiguity: Share = 0.2
    """Share of the questions with two equally likely answers, of which one is correct."""
    evaluation_samples: Count = 1_000
    """Most questions of the evaluation."""

    def __post_init__(self):
        if self.dim % self.heads:
            self._reject("heads", f"a divisor of dim ({self.dim})")
        if self.distractors + 2 > self.slots:
            self._reject("distractors", f"at most slots - 2 ({self.slots - 2})")
        if self.weights and not self.data:
            self._reject("weights", "None without data: no BERT was trained on the language of synthetic questions")

    def model(self, seed: int) -> QuestionAnswering:
        if self.weights:
            return PretrainedQA(self.weights)
        words, length = self._vocabulary_and_length
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
            return _batch(self.draw_with_bayes_accuracy(size, seed=seed, first=first)[0], index)
        pool = _encoded_questions(self).questions
        rows = epoch_rows(seed, first, size, len(pool.tokens))
        return _batch(Questions(*(part[rows] for part in pool)), index)

    def work(self) -> Work:
        """Six operations for each parameter of the encoder and each place, and the attention's products."""
        _, length = self._vocabulary_and_length
        layer = 12 * self.dim**2 + 2 * length * self.dim
        states = self.batch_size * length * self.dim * (1 + 12 * self.layers)
        flops = 6.0 * self.batch_size * length * self.layers * layer
        return Work(flops=flops, bytes=12.0 * (dense_parameters(self) + states))

    def evaluate(
        self, model: QuestionAnswering, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """em and f1 by SQuAD's rules; for synthetic questions also `em_ceiling`, the best possible."""
        held_out = _held_out_data(self, seed)
        pool = held_out.questions
        scores = [model(part, rows).cpu().numpy() for part in _batch(pool, 0).parts(_CHUNK)]
        spans = best_spans(np.concatenate(scores), held_out.begins, pool.sizes)
        given = [held_out.answer_words(row, *span) for row, span in enumerate(spans.tolist())]
        pairs = list(zip(given, held_out.right, strict=True))
        result = {
            "em": float(np.mean([exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([f1_score(*pair) for pair in pairs])),
        }
        return result if held_out.ceiling is None else result | {"em_ceiling": held_out.ceiling}

    def draw_with_bayes_accuracy(self, size: int, *, seed: int, first: object) -> tuple[Questions, np.ndarray]:
        """Draw synthetic questions, and for each the probability that the best possible answer is correct.

        A question names a kind of words, and the answer is the stretch of such words in the passage. The passage has slots. Some
        hold one to three words of some kind, the others only filler. With probability `ambiguity` two stretches are of the right
        kind, and either is the answer with equal probability.
        """
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
        within = generator.integers(self.words, size=(*order.shape, 4))
        within += 4 + self.kinds + kinds[:, :, None] * self.words
        inside = np.arange(4) < widths[:, :, None]
        passage[rows, order] = np.where(inside, within, passage[rows, order])
        start = 3 + 4 * order[:, 0]
        ends = np.full((size, 1), SEP)
        question = np.stack((np.full(size, CLS), 4 + asked, np.full(size, SEP)), 1)
        tokens = np.concatenate((question, passage.reshape(size, -1), ends), 1)
        segments = np.zeros_like(tokens)
        segments[:, 3:] = 1
        spans = np.stack((start, start + widths[:, 0] - 1), 1)
        return Questions(tokens, segments, np.full(size, tokens.shape[1]), spans), np.where(twice, 0.5, 1.0)

    @property
    def _vocabulary_and_length(self) -> tuple[int, int]:
        """Words of the vocabulary, and places of a sample."""
        if self.data:
            return len(_vocabulary(self)), self.length
        return 4 + self.kinds + (self.kinds + 1) * self.words, 4 * self.slots + 4


class _HeldOutQuestions(NamedTuple):
    questions: Questions
    begins: np.ndarray
    right: list[list[list]]
    """The words of all correct answers of each question."""
    ceiling: float | None
    texts: list[tuple[str, list[tuple[int, int]]]] | None
    """The passage of each real question, and where its words begin and end."""

    def answer_words(self, sample: int, first: int, last: int) -> list:
        """The words between two places of a sample."""
        if self.texts is None:
            return self.questions.tokens[sample, first : last + 1].tolist()
        passage, places = self.texts[sample]
        begin = int(self.begins[sample])
        return normalise_answer(passage[places[first - begin][0] : places[last - begin][1]])


@functools.lru_cache(maxsize=4)
def _held_out_data(workload: Answers, seed: int) -> _HeldOutQuestions:
    if not workload.data:
        size = workload.evaluation_samples
        questions, chance = workload.draw_with_bayes_accuracy(size, seed=seed, first="evaluation")
        spans = questions.spans.tolist()
        right = [[row[a : b + 1].tolist()] for row, (a, b) in zip(questions.tokens, spans, strict=True)]
        return _HeldOutQuestions(questions, np.full(size, 3), right, float(chance.mean()), None)
    _, asked = read_questions(workload.data)
    chosen = np.sort(stream(0, "judged").permutation(len(asked))[: workload.evaluation_samples])
    asked = [asked[place] for place in chosen.tolist()]
    questions, offsets, begins = encode_questions(_vocabulary(workload), asked, workload.length, around=False)
    right = [[normalise_answer(answer) for answer in question.answers] for question in asked]
    texts = [(question.passage, places) for question, places in zip(asked, offsets, strict=True)]
    return _HeldOutQuestions(questions, begins, right, None, texts)


@functools.lru_cache(maxsize=2)
def _vocabulary(workload: Answers) -> Vocabulary | PretrainedVocabulary:
    if workload.weights:
        return PretrainedVocabulary(workload.weights)
    asked, _ = read_questions(workload.data)
    passages = dict.fromkeys(question.passage for question in asked)
    return Vocabulary([*passages, *(question.question for question in asked)], workload.vocabulary)


@functools.lru_cache(maxsize=2)
def _encoded_questions(workload: Answers) -> EncodedQuestions:
    return encode_questions(_vocabulary(workload), read_questions(workload.data)[0], workload.length, around=True)


def _batch(questions: Questions, index: int) -> Batch:
    features = {"token": questions.tokens, "segment": questions.segments, "tokens": questions.sizes}
    return Batch.of(index=index, raw={}, size=len(questions.tokens), features=features, labels=questions.spans)
