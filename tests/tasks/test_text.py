import math

import pytest
import torch
from torch.nn import functional as F

from lib.errors import BadOption, LockstepError
from lib.tasks.flat_model import Batch
from lib.tasks.text import BertQA, PretrainedQA, PretrainedVocabulary
from tests.tasks.gradients import check_gradients

SHAPE = {"words": 12, "dim": 4, "layers": 2, "heads": 2, "inner": 8, "length": 6}


@pytest.fixture
def batch():
    features = {
        "token": torch.tensor([[1, 5, 2, 7, 8, 2], [1, 4, 2, 9, 0, 0]]),
        "segment": torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0]]),
        "tokens": torch.tensor([6, 4]),
    }
    labels = torch.tensor([[3, 4], [3, 3]])
    return Batch(index=0, size=2, ids={}, where={}, features=features, labels=labels)


def plain(model, tokens, segments):
    """One sample without padding, one head after another."""
    table = dict(model.named_parameters())

    def linear(name, x):
        return x @ table[f"{name}.weight"].T + table[f"{name}.bias"]

    def norm(name, x):
        scaled = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-12).sqrt()
        return scaled * table[f"{name}.weight"] + table[f"{name}.bias"]

    place = "bert.embeddings"
    x = table[f"{place}.word_embeddings.weight"][tokens] + table[f"{place}.position_embeddings.weight"][: len(tokens)]
    x = norm(f"{place}.LayerNorm", x + table[f"{place}.token_type_embeddings.weight"][segments])
    for number in range(2):
        place = f"bert.encoder.layer.{number}"
        query, key, value = (linear(f"{place}.attention.self.{name}", x) for name in ("query", "key", "value"))
        heads = []
        for head in (slice(0, 2), slice(2, 4)):
            weights = (query[:, head] @ key[:, head].T / math.sqrt(2)).softmax(1)
            heads.append(weights @ value[:, head])
        met = linear(f"{place}.attention.output.dense", torch.cat(heads, 1))
        x = norm(f"{place}.attention.output.LayerNorm", met + x)
        inner = F.gelu(linear(f"{place}.intermediate.dense", x))
        x = norm(f"{place}.output.LayerNorm", linear(f"{place}.output.dense", inner) + x)
    return linear("qa_outputs", x).T


def test_equals_the_plain_reference_and_padding_changes_nothing(batch):
    model = BertQA(**SHAPE, seed=0)
    scores = model(batch, {})
    assert scores.shape == (2, 2, 6)
    for row, size in enumerate((6, 4)):
        tokens, segments = (batch.features[name][row, :size] for name in ("token", "segment"))
        torch.testing.assert_close(scores[row, :, :size], plain(model, tokens, segments))
    assert (scores[1, :, 4:] < -1e30).all()


def test_loss_by_hand(batch):
    assert BertQA(**SHAPE, seed=0).loss(batch, torch.zeros(2, 2, 6)).item() == pytest.approx(math.log(6))


def test_gradients(batch):
    model = BertQA(**SHAPE | {"layers": 1}, seed=0)
    check_gradients(model, batch, loss=True, of=lambda name: "word" not in name and "token_type" not in name)


def test_weights_begin_with_berts_deviation():
    wide = BertQA(**SHAPE | {"dim": 768, "words": 500}, seed=0)
    assert wide.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.02)


def hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=6, hidden_dropout_prob=0.1,
    )  # fmt: skip
    with torch.random.fork_rng():
        network = transformers.BertForQuestionAnswering(config)
    network.save_pretrained(tmp_path)
    return network


def test_is_hugging_faces_bert(batch, tmp_path):
    theirs = hugging_face(tmp_path)
    model = BertQA(**SHAPE, seed=0)
    missing, unexpected = model.load_state_dict(theirs.state_dict(), strict=False)
    assert not missing and all("position_ids" in name for name in unexpected)
    torch.testing.assert_close(model(batch, {}), PretrainedQA(tmp_path)(batch, {}))


def test_pretrained_weights_come_from_the_folder_and_have_no_dropout(batch, tmp_path):
    hugging_face(tmp_path)
    before = torch.random.get_rng_state()
    first, again = PretrainedQA(tmp_path), PretrainedQA(tmp_path)
    assert torch.equal(first(batch, {}), again(batch, {})) and torch.equal(first(batch, {}), first(batch, {}))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_word_pieces_say_where_they_stand(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "chess"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    pieces = PretrainedVocabulary(tmp_path)
    assert pieces.encode("Playing chess") == ([5, 6, 7], [(0, 4), (4, 7), (8, 13)])
    assert (pieces.pad, pieces.first, pieces.end, len(pieces)) == (0, 2, 3, 8)


def test_a_folder_without_a_model_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(LockstepError, match=r"pip install 'lockstep\[text\]'"):
        PretrainedQA(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "transformers", torch)
    with pytest.raises(BadOption, match=r"holds no config\.json"):
        PretrainedQA(tmp_path)
