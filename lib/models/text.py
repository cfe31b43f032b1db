"""BERT (Devlin et al., 2019) for question answering: where in a passage does the answer begin, and where does it end?

`BertQA` is the network itself, for what is trained from random weights; its parameters carry the names of Hugging Face's
`BertForQuestionAnswering` and mean the same, which a test holds it to. `PretrainedQA` holds that class, with weights from a
local folder; it needs the extra `text`.

`batch.features` has `token` and `segment` (samples, length) and `tokens`, how many of a sample's places are real. Scores have
the shape (samples, 2, length): each place's logit as the beginning and as the end. `batch.labels` (samples, 2) holds both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.errors import BadOption, LockstepError
from lib.models.layers import generator

EPS = 1e-12


class QuestionAnswering(nn.Module):
    """The loss is the mean of the beginning's and the end's cross-entropy over the places."""

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())


class BertQA(QuestionAnswering):
    """A BERT encoder without dropout, and a linear layer that reads off beginning and end."""

    def __init__(self, *, words: int, dim: int, layers: int, heads: int, inner: int, length: int, seed: int):
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = Embeddings(words, dim, length)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(Layer(dim, heads, inner) for _ in range(layers))
        self.qa_outputs = _empty(nn.Linear, dim, 2)
        start(self, dim, seed)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        features = batch.features
        states = self.bert.embeddings(features["token"], features["segment"])
        real = torch.arange(states.shape[1], device=states.device) < features["tokens"].unsqueeze(1)
        for layer in self.bert.encoder.layer:
            states = layer(states, real[:, None, None])
        scores = self.qa_outputs(states).transpose(1, 2)
        return scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min)


class Embeddings(nn.Module):
    """Word, position and segment, added and normalised."""

    def __init__(self, words: int, dim: int, length: int):
        super().__init__()
        self.word_embeddings = _empty(nn.Embedding, words, dim)
        self.position_embeddings = _empty(nn.Embedding, length, dim)
        self.token_type_embeddings = _empty(nn.Embedding, 2, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + places + self.token_type_embeddings(segments))


class Layer(nn.Module):
    """Attention and a two-layer network, each added to its input and then normalised."""

    def __init__(self, dim: int, heads: int, inner: int):
        super().__init__()
        self.heads = heads
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, _empty(nn.Linear, dim, dim))
        self.attention.output = Residual(dim, dim)
        self.intermediate = nn.Module()
        self.intermediate.dense = _empty(nn.Linear, dim, inner)
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
        self.dense = _empty(nn.Linear, inputs, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, change: Tensor, states: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(change) + states)


class PretrainedQA(QuestionAnswering):
    """Hugging Face's BERT with the weights of a local folder; nothing is ever downloaded. Dropout is off: a step is pure."""

    def __init__(self, folder: str | Path):
        super().__init__()
        transformers = extra("transformers")
        if not (Path(folder) / "config.json").is_file():
            raise BadOption(
                f"{folder} holds no config.json; expected the folder of a BERT that was saved by transformers"
            )
        self.network = transformers.BertForQuestionAnswering.from_pretrained(folder, local_files_only=True).eval()

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        features = batch.features
        real = torch.arange(features["token"].shape[1], device=features["token"].device)
        real = real < features["tokens"].unsqueeze(1)
        found = self.network(
            input_ids=features["token"], token_type_ids=features["segment"], attention_mask=real.long()
        )
        scores = torch.stack((found.start_logits, found.end_logits), 1)
        return scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min)


class PretrainedWords:
    """The word pieces of a pretrained BERT, with the interface of lib.data.questions.Words."""

    def __init__(self, folder: str | Path):
        transformers = extra("transformers")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not self._tokenizer.is_fast:
            raise BadOption(f"{folder}: its tokenizer cannot say where in a text its pieces stand; expected a fast one")
        special = [self._tokenizer.pad_token_id, self._tokenizer.cls_token_id, self._tokenizer.sep_token_id]
        self.pad, self.first, self.end = special

    def __len__(self) -> int:
        return len(self._tokenizer)

    def cut(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        pieces = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return pieces["input_ids"], pieces["offset_mapping"]


def extra(name: str):
    """A package of the extra `text`."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LockstepError(f"weights from a folder need {name} ({error}): pip install 'lockstep[text]'") from error


def start(model: nn.Module, dim: int, seed: int) -> None:
    """BERT's first weights: biases 0, matrices normal with deviation 0.02 at its width of 768. A narrower network's are
    larger, so that what a layer adds has the same size."""
    stream, spread = generator(seed), 0.02 * math.sqrt(768 / dim)
    for name, parameter in model.named_parameters():
        if "LayerNorm" not in name:
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0, spread, generator=stream)
            else:
                nn.init.zeros_(parameter)


def _empty(kind: type[nn.Module], *sizes: int) -> nn.Module:
    """A layer without first weights: torch would draw them from its global stream."""
    return nn.utils.skip_init(kind, *sizes)
