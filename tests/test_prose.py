"""The linter of prose finds what it lists, where it stands, and reads no code."""

from tests.prose import findings

TEXT = """# A heading

A protocol of whoever comes is not the sooner one.

- `nobody` is code, and "nobody" a quotation.

```
nobody, in a block
```

{long}
"""
CODE = '''"""What the run told."""

def kept():
    return "nobody"  # nobody reads strings
'''


def test_words_and_long_sentences_are_listed_with_their_lines(tmp_path):
    (tmp_path / "a.md").write_text(TEXT.format(long="word " * 31))
    found = [each.removeprefix(str(tmp_path)) for each in findings(tmp_path / "a.md")]
    assert found[0].startswith("/a.md:3: 'whoever'") and found[1].startswith("/a.md:3: 'sooner'")
    assert found[2].startswith("/a.md:11: 31 words: word word") and len(found) == 3


def test_docstrings_comments_and_names_are_read(tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    found = [each.removeprefix(str(tmp_path)) for each in findings(tmp_path / "a.py")]
    assert [each.split(": ")[0] for each in found] == ["/a.py:1", "/a.py:3", "/a.py:4"]
