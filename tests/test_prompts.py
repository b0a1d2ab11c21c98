"""prompts.py: what prompts say, and which part of a response is the program (case 32)."""

import pytest

from prompts import Attempt, build_prompt, encode_prompt, extract_program

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
