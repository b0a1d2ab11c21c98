"""chatbot-arena: of two chatbots' answers, which one will the user prefer, or is it a tie? Log loss over three classes.

The twin's hidden rule is in `draw`: users like longer answers up to a point, lists, and words of their own question, dislike
refusals; what counts is the difference of the two answers, and ties come where it is small or both are bad.
"""

from tasks.grading import LOG_LOSS_3
from tasks.task import Schema

NAME, ID = "chatbot-arena", "lmsys-chatbot-arena"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = LOG_LOSS_3, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")
TEXTS = ("prompt", "response_a", "response_b")
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "model_a", "model_b", *TEXTS, *WINNERS), ("id", *TEXTS)

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", WINNERS, "multiclass", "probabilities",
                text=TEXTS, pair=("response_a", "response_b"), classes=WINNERS)  # fmt: skip

DESCRIPTION = """\
Goal: predict which of two answers a user preferred, in conversations with two anonymous chatbots.

Files:
- train.csv: id, model_a, model_b, prompt, response_a, response_b, winner_model_a, winner_model_b, winner_tie.
- test.csv: id, prompt, response_a, response_b.
- sample_submission.csv: a submission of the right form, with 1/3 everywhere.

Columns: id is a number without meaning; prompt, response_a and response_b are JSON lists of texts, one text a turn of the
conversation (json.loads reads them); model_a and model_b name the chatbots (train only). Of the three winner columns
exactly one is 1, the rest 0.

Metric: log loss over the three outcomes, the mean of -log of the probability given to the true one; lower is better.

Submission: submission.csv with the header id,winner_model_a,winner_model_b,winner_tie and one row per row of test.csv; the
three probabilities of a row are in [0, 1] and sum to 1 (to 6 decimals).
"""
