"""Programs that attack who reads their submission: the monitor that opens it, and the grader that parses it."""

from case import Case


def submit(name: str, program: str, submission: str, **options) -> Case:
    return Case("submission", name, "import os\n" + program, submission=submission, **options)


def content(name: str, expression: str, statuses=("ok", "error", "oom")) -> Case:
    """Build a program that submits bytes which no grader may accept."""
    return submit(name, f"open('submission.csv', 'wb').write({expression})", "invalid", statuses=statuses)


KINDS = [
    submit("symbolic link to the labels", "os.symlink('@CANARY@', 'submission.csv')", "none"),
    submit("symbolic link to a device", "os.symlink('/dev/zero', 'submission.csv')", "none"),
    submit("symbolic link to its data", "os.symlink('test.csv', 'submission.csv')", "none"),
    submit("hard link to the labels", "os.link('@CANARY@', 'submission.csv')", "none", needs=("landlock|user",)),
    submit("hard link to the data", "os.link('@PUBLIC@/test.csv', 'submission.csv')", "none"),
    submit("hard link to its copy of the data", "os.link('test.csv', 'submission.csv')", "none"),
    submit("FIFO", "os.mkfifo('submission.csv')", "none"),
    submit("FIFO that it fills", "os.mkfifo('submission.csv'); os.write(os.open('submission.csv', os.O_RDWR), b'x')", "none"),
    submit("directory", "os.mkdir('submission.csv'); open('submission.csv/submission.csv', 'w').write('x')", "none"),
    submit("work directory's own link", "os.symlink('.', 'submission.csv'); os.symlink('..', 'submission.csv.x')", "none"),
    submit("socket", "import socket; socket.socket(socket.AF_UNIX).bind('submission.csv')", "none"),
    submit("device", "os.mknod('submission.csv', 0o20666, os.makedev(1, 5))", "none"),
    submit("sparse, 10 GB", "f = open('submission.csv', 'wb'); f.truncate(10 << 30)", "invalid"),
    submit("sparse, 10 GB, in pieces", """
with open('submission.csv', 'wb') as f:
    for size in (10 << 30, 2 << 30, 255 << 20):
        try: f.truncate(size)
        except OSError as error: print('refused:', error)
""", "none"),
    submit("real, 200 MB", "with open('submission.csv', 'wb') as f: [f.write(bytes(1 << 20)) for _ in range(200)]", "none",
           time_limit_s=10.0),
    submit("without rights", "open('submission.csv', 'w').write('id,y\\n'); os.chmod('submission.csv', 0)", "invalid"),
    submit("in a moved work directory", """
try: os.rename('.', '../moved'); open('../moved/submission.csv', 'w').write('x')
except OSError as error: print('refused:', error)
try: os.rename(os.getcwd(), os.getcwd() + 'x'); os.symlink('@CANARY@', os.getcwd())
except OSError as error: print('refused:', error)
""", "none"),
    submit("swapped by a thread while it is read", """
import threading, time
def swap():
    while True:
        for make in (lambda: os.symlink('@CANARY@', 'x'), lambda: open('x', 'w'), lambda: os.mkfifo('x')):
            try: make(); os.replace('x', 'submission.csv')
            except OSError: pass
threading.Thread(target=swap, daemon=True).start()
time.sleep(0.2); os._exit(0)
""", "invalid"),
    submit("swapped until the deadline", """
while True:
    for make in (lambda: os.symlink('@CANARY@', 'x'), lambda: os.link('@CANARY@', 'x'), lambda: open('x', 'w')):
        try: make(); os.replace('x', 'submission.csv')
        except OSError: pass
""", "invalid", statuses=("timeout",), time_limit_s=0.4),
    submit("own source, then removed", "open('submission.csv', 'w').write('id,y\\n'); os.remove('submission.csv')", "none"),
]  # fmt: skip

CONTENTS = [
    content("three million columns", "b'id,y,' + b','.join(b'%d' % i for i in range(3 * 10**6)) + b'\\n'"),
    content("three million empty columns in the second row", "b'id,y\\n' + b',' * 3000000 + b'\\n'"),
    content("NaN", "b'id,y\\n' + b''.join(b'%d,nan\\n' % i for i in range(200))"),
    content("empty cells", "b'id,y\\n' + b''.join(b'%d,\\n' % i for i in range(200))"),
    content("infinity", "b'id,y\\n' + b''.join(b'%d,1e999\\n' % i for i in range(200))"),
    content("out of range", "b'id,y\\n' + b''.join(b'%d,2\\n' % i for i in range(200))"),
    content("number of a million digits", "b'id,y\\n' + b''.join(b'%d,0.%s\\n' % (i, b'1' * 10**6) for i in range(9))"),
    content("Python in place of a number", "b'id,y\\n' + b''.join(b'%d,exit()\\n' % i for i in range(200))"),
    content("pickle", "__import__('pickle').dumps(type('A', (), {'__module__': 'builtins'})().__class__.__name__) * 9"),
    content("pickle that runs code", "b'cos\\nsystem\\n(S\"echo ESCAPED > @SHARED@/pickle\"\\ntR.'"),
    content("gzip", "__import__('gzip').compress(b'id,y\\n' + b''.join(b'%d,0\\n' % i for i in range(200)))"),
    content("gzip bomb", "__import__('gzip').compress(bytes(100 << 20))"),
    content("zip, with a name within", "b'PK\\x03\\x04' + bytes(100)"),
    content("ten million rows", "b'id,y\\n' + b'1,0\\n' * 10**7"),
    content("one line of 30 MB", "b'id,y' + b'x' * (30 << 20)"),
    content("an open quote", "b'id,y\\n' + b'\"' + b'1,0\\n' * 10**6"),
    content("quotes in quotes", "b'id,y\\n' + b'\"' * 10**6"),
    content("NUL bytes", "b'id,y\\n' + b'1,\\x000\\n' * 200"),
    content("no UTF-8", "b'\\xff\\xfe' + 'id,y\\n1,0\\n'.encode('utf-16-le')"),
    content("the same id again and again", "b'id,y\\n' + b'1,0\\n' * 200"),
    content("empty", "b''"),
    content("only line ends", "b'\\r\\n' * 10**6"),
    content("twice the same column", "b'id,y,y\\n' + b''.join(b'%d,x,1\\n' % i for i in range(200))"),
]  # fmt: skip

CASES = KINDS + CONTENTS
