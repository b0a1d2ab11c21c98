"""tweet-sentiment: which words of a tweet carry its sentiment? A span of text to extract; mean word Jaccard.

The twin's hidden rule is in `draw`: neutral tweets are quoted whole; for the others the span is the phrase of that
sentiment, with its intensifier and what follows, and a tweet may hold phrases of both sentiments.
"""

from tasks.grading import JACCARD
from tasks.task import Schema

NAME, ID = "tweet-sentiment", "tweet-sentiment-extraction"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = JACCARD, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("textID", "text", "selected_text", "sentiment"), ("textID", "text", "sentiment")

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "textID", ("selected_text",), "span", "span",
                text=("text",), categorical=("sentiment",))  # fmt: skip

DESCRIPTION = """\
Goal: quote the part of a tweet that expresses its sentiment, which is given.

Files:
- train.csv: textID, text, selected_text, sentiment.
- test.csv: textID, text, sentiment.
- sample_submission.csv: a submission of the right form, with empty spans.

Columns: textID is a text such as cb774db0d1; text is the tweet; sentiment is positive, negative or neutral; selected_text
is the piece of text that an annotator chose: consecutive characters of it. For neutral tweets it is mostly all of it.

Metric: the mean over all tweets of the Jaccard similarity of the predicted and the true span as sets of lower-case words:
words in both / words in either; higher is better, 1 is perfect.

Submission: submission.csv with the header textID,selected_text and one row per row of test.csv.
"""
