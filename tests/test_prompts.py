"""prompts.py: what prompts say, and which part of a response is the program (case 32)."""

import ast

import pytest

from prompts import Attempt, build_prompt, encode_prompt, extract_program, find_runs, quoted
from tasks import find_task, load_task, task_names
from warmstart import train_tokenizer

CODE = "import pandas as pd\nprint(1)"
FENCED_DOCSTRING = 'def f():\n    """Use it:\n    ```python\n    f()\n    ```\n    """\n    return 1\nprint(f())'


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (f"Plan.\n```python\n{CODE}\n```\n", CODE),
        (f"Plan.\n```python\n{CODE}\n```\nTry it:\n```python\nmain()\n```\n", CODE),
        (f"Plan.\n```python\n{CODE}", CODE),
        (f"{CODE}\n```\nDone.", CODE),
        (f"```py\n{CODE}\n```", CODE),
        (f"```Python3\n{CODE}\n```", CODE),
        (f"~~~\n{CODE}\n~~~", CODE),
        (f"````python\n{CODE}\n````", CODE),
        (f"```\n{CODE}\n```", CODE),
        (f"```bash\npip install x\n```\n```python\n{CODE}\n```", CODE),
        (f"```python\n{FENCED_DOCSTRING}\n```\nok", FENCED_DOCSTRING),
        (CODE, CODE),
        ("```python\nx = (\n```", "x = ("),
        ("", None),
        ("I cannot do that.", None),
        ("```python\n```", None),
        ("```bash\nls\n```", None),
        ('```python\nx = "a\u2028b"\n```', 'x = "a\u2028b"'),
        ("```python\n\n```\n```python\nprint(1)\n```", "print(1)"),
        ("1. Do:\n   ```python\n   import os\n   print(1)\n   ```", "import os\nprint(1)"),
        ("```python\nprint(1)```", "print(1)"),
        (f"```markdown\nPlan.\n```python\n{CODE}\n```\n```", CODE),
        (f"```md\nPlan.\n```\n```python\n{CODE}\n```", CODE),
        ("```python\nprint(1)\n``` done", "print(1)\n"),
    ],
)
def test_extract_program(response, program):
    assert extract_program(response) == (None if program is None else program + "\n")


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 50_000 + "1", "\0", "```python\n" + "(" * 3000 + "\n```", "```" * 2000])
def test_extract_program_survives_any_text(text):
    extract_program(text)


def test_both_variants_hold_the_same_facts(pizza):
    for brief in (True, False):
        prompt = build_prompt(pizza, brief=brief)
        for fact in ("train.json", "test.json", "submission.csv", "request_id", "requester_received_pizza", "auc",
                     "request_text_edit_aware", "requester_number_of_posts_at_request", "scikit-learn", "4 GiB",
                     "60 s"):  # fmt: skip
            assert fact in prompt, (brief, fact)


def test_an_improvement_prompt_shows_program_output_and_score(pizza):
    prompt = build_prompt(pizza, Attempt("print('abc')\n", "abc", 0.1234), brief=True)
    assert "print('abc')" in prompt and "abc" in prompt and "0.123" in prompt
    assert "failed" in build_prompt(pizza, Attempt("1/0", "ZeroDivisionError", None), brief=True)


def test_no_label_of_the_test_split_is_in_a_prompt(pizza):
    prompt = build_prompt(pizza)
    assert "_at_retrieval" not in prompt.split("- test.json: ")[-1]


def test_a_chat_template_is_used_where_there_is_one(tokenizer):
    import copy

    chat = copy.deepcopy(tokenizer)
    chat.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
    )
    text = chat.decode(encode_prompt(chat, "hello"))
    assert text.endswith("<user>hello<go>") and text.startswith("<system>")
    assert tokenizer.decode(encode_prompt(tokenizer, "hello")) == "hello\n### Answer\n"


@pytest.mark.parametrize("name", task_names())
def test_the_prompts_of_every_task_are_short_and_name_what_a_program_needs(name, tmp_path):
    task, schema = load_task(name, tmp_path, "reward"), find_task(name).SCHEMA
    brief, full = build_prompt(task, brief=True), build_prompt(task)
    tokenizer = train_tokenizer([brief], 1536)  # as good as one trained on many demonstrations
    assert len(encode_prompt(tokenizer, brief)) <= 150
    assert len(full) < 9000 and max(map(len, full.splitlines())) < 400
    files = (schema.train_file, schema.test_file, schema.sample_file, *schema.image_files, *schema.geometry_files)
    for fact in (schema.id_column, *files, *schema.text, *schema.categorical, *schema.codes, schema.label_column):
        assert fact in brief and fact in full, fact


def test_runs_of_numbered_columns_are_named_by_their_ends(tmp_path):
    brief = build_prompt(load_task("leaf-classification", tmp_path, "reward"), brief=True)
    assert "Numeric margin1..margin64 shape1..shape64 texture1..texture64\n" in brief
    assert "id the 99 columns of sample_submission.csv as probabilities" in brief and "Acer_Mono" not in brief
    columns = ("f_08", "f_09", "f_10", "f_11", "f_13", "a9", "a10", "a11", "a12", "x", "2", "3", "4", "5")
    runs = [("f_08", "f_09", "f_10", "f_11"), ("f_13",), ("a9", "a10", "a11", "a12"), ("x",), ("2",), ("3",), ("4",), ("5",)]
    assert find_runs(columns) == runs


@pytest.mark.parametrize("text", ["plain_1", "naïve word", 'a"b', "a\\b", "a\nb", "it's", "", '"'])
def test_quoted_is_the_literal_of_any_text(text):
    assert ast.literal_eval(quoted(text)) == text
    assert quoted("plain_1") == '"plain_1"'
