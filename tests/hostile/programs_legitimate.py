"""Programs that do honest work, in ways in which a sandbox may break them. They must print WORKED and end well."""

from case import Case

DATA = """import pandas as pd
train, test = pd.read_csv('train.csv'), pd.read_csv('test.csv')
X, y = train[['a', 'b']], train.y
"""
SUBMIT = "\npd.DataFrame({'id': test.id, 'y': p}).to_csv('submission.csv', index=False)\n"


def work(name: str, program: str, submits=False) -> Case:
    program = program.strip("\n")
    if submits:
        program = DATA + program + SUBMIT
    program += "\nprint('WORKED')"
    return Case("legitimate", name, program, ("ok",), time_limit_s=40.0, says="WORKED", legitimate=True,
                submission="valid" if submits else "any")  # fmt: skip


CASES = [
    work("forest on all cores", """
from sklearn.ensemble import RandomForestClassifier
p = RandomForestClassifier(20, n_jobs=-1, random_state=0).fit(X, y).predict_proba(test[['a', 'b']])[:, 1]
""", True),
    work("cross validation and search on all cores", """
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
cross_val_score(LogisticRegression(), X, y, cv=3, n_jobs=-1)
search = GridSearchCV(LogisticRegression(), {'C': [0.1, 1]}, cv=3, n_jobs=2).fit(X, y)
p = search.predict_proba(test[['a', 'b']])[:, 1]
""", True),
    work("fifty boosted trees", """
from sklearn.ensemble import GradientBoostingClassifier
p = GradientBoostingClassifier(n_estimators=50).fit(X, y).predict_proba(test[['a', 'b']])[:, 1]
""", True),
    work("histogram boosting with its threads", """
from sklearn.ensemble import HistGradientBoostingClassifier
p = HistGradientBoostingClassifier(max_iter=10).fit(X, y).predict_proba(test[['a', 'b']])[:, 1]
""", True),
    work("text pipeline with a vote and a calibration", """
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
model = make_pipeline(TfidfVectorizer(), CalibratedClassifierCV(MultinomialNB(), cv=2)).fit(train.text, y)
p = model.predict_proba(test.text)[:, 1]
""", True),
    work("data read twice, by a relative and an absolute path", """
import os
here = os.getcwd()
again = pd.read_csv(os.path.join(here, 'train.csv')); assert again.equals(pd.read_csv('./train.csv'))
assert pd.read_csv(os.path.abspath('test.csv')).equals(test) and open('more/note.txt').read()
p = [train.y.mean()] * len(test)
""", True),
    work("main guard, functions, classes and types", """
import argparse, dataclasses, typing
@dataclasses.dataclass
class Settings:
    C: float = 1.0
def main():
    global p
    settings = Settings(**vars(argparse.ArgumentParser().parse_args()))
    p = [0.5] * len(test)
if __name__ == '__main__':
    main()
""", True),
    work("parallel by joblib", """
from joblib import Memory, Parallel, delayed
assert Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(9)) == list(range(9))
assert Parallel(n_jobs=-1, prefer='threads')(delayed(abs)(-i) for i in range(9)) == list(range(9))
def square(x): return x * x
assert Memory('cache', verbose=0).cache(square)(3) == 9
"""),
    work("dataclass through joblib and pickle", """
import dataclasses, joblib, pickle
@dataclasses.dataclass
class Model:
    weight: float
joblib.dump(Model(0.5), 'model.joblib'); assert joblib.load('model.joblib') == Model(0.5)
with open('model.pkl', 'wb') as f: pickle.dump([Model(1.0)], f)
with open('model.pkl', 'rb') as f: assert pickle.load(f) == [Model(1.0)]
"""),
    work("tables in many formats", """
import io, pandas as pd
frame = pd.read_csv('train.csv')
frame.to_pickle('x.pkl'); assert pd.read_pickle('x.pkl').equals(frame)
frame.to_csv('x.csv.gz', index=False); assert pd.read_csv('x.csv.gz').equals(frame)
frame.to_json('x.json'); assert len(pd.read_json('x.json')) == len(frame)
"""),
    work("temporary files and directories", """
import os, tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile('w') as f:
    f.write('x'); f.flush(); assert open(f.name).read() == 'x'
    open(os.path.join(folder, 'x'), 'w').write('x')
assert not os.path.exists(folder)
with tempfile.TemporaryFile() as f, tempfile.SpooledTemporaryFile(4) as g: f.write(b'x'); g.write(b'12345')
"""),
    work("a csv in a subdirectory, renamed", """
import csv, os
os.makedirs('out/put', exist_ok=True)
with open('out/put/part.csv', 'w', newline='') as f: csv.writer(f).writerows([['id', 'y'], [1, 0]])
os.rename('out/put/part.csv', 'done.csv'); os.replace('done.csv', 'final.csv')
assert len(list(csv.reader(open('final.csv')))) == 2
os.rename('out/put', 'put'); os.rmdir('put'); os.rmdir('out')
"""),
    work("data copied and removed by shutil and pathlib", """
import shutil
from pathlib import Path
shutil.copy('train.csv', 'copy.csv'); shutil.copytree('more', 'copy'); shutil.copyfile('train.csv', 'again.csv')
shutil.copy2('train.csv', 'copy2.csv'); shutil.move('again.csv', 'moved.csv')
assert Path('copy.csv').read_bytes() == Path('train.csv').read_bytes() and list(Path('.').rglob('note.txt'))
shutil.rmtree('copy'); Path('copy.csv').unlink(); assert shutil.disk_usage('.').free > 0
"""),
    work("arrays and archives", """
import bz2, gzip, lzma, numpy as np, tarfile, zipfile
np.save('x.npy', np.arange(9)); np.savez_compressed('x.npz', a=np.ones(3)); assert np.load('x.npz')['a'].sum() == 3
assert np.load('x.npy', mmap_mode='r')[8] == 8
for module in (gzip, bz2, lzma):
    with module.open('x.z', 'wt') as f: f.write('text')
    assert module.open('x.z', 'rt').read() == 'text'
with zipfile.ZipFile('x.zip', 'w') as z: z.write('train.csv')
with tarfile.open('x.tar.gz', 'w:gz') as t: t.add('train.csv')
"""),
    work("threads and pools of threads", """
import queue, threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
with ThreadPoolExecutor(8) as pool: assert sum(pool.map(abs, range(-99, 0))) == 4950
with ThreadPool(4) as pool: assert pool.map(abs, [-1]) == [1]
q = queue.Queue(); thread = threading.Thread(target=q.put, args=(1,)); thread.start(); thread.join(); assert q.get() == 1
threading.Timer(0.01, print, args=('timer',)).start()
"""),
    work("asyncio", """
import asyncio
async def main():
    await asyncio.sleep(0.01)
    return sum(await asyncio.gather(*(asyncio.to_thread(abs, -i) for i in range(9))))
assert asyncio.run(main()) == 36
"""),
    work("lazy imports", """
import ssl, sqlite3, hashlib, decimal, xml.etree.ElementTree, http.client, unittest, ctypes, email, statistics
database = sqlite3.connect('x.db'); database.execute('create table t (a)'); database.commit()
assert sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,) and ssl.OPENSSL_VERSION
import scipy.optimize, scipy.sparse, scipy.stats, sklearn.gaussian_process, sklearn.semi_supervised
assert scipy.optimize.minimize(lambda x: (x[0] - 1) ** 2, [0.0]).success
"""),
    work("warnings and logging", """
import logging, warnings, sys
warnings.warn('be warned'); logging.basicConfig(filename='run.log', level='INFO'); logging.info('x'); logging.shutdown()
assert open('run.log').read() and not print('progress', file=sys.stderr, flush=True)
"""),
    work("tqdm", """
from tqdm import tqdm, trange
for _ in tqdm(range(50), desc='train'): pass
assert sum(trange(10)) == 45
"""),
    work("a figure", """
try:
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
except ImportError: plt = None
if plt: plt.plot([1, 2]); plt.title('x'); plt.savefig('x.png'); assert open('x.png', 'rb').read(4) == b'\\x89PNG'
"""),
    work("time zones, dates and locales", """
import datetime, locale, time, zoneinfo
import pandas as pd
assert datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset().seconds == 7200
assert pd.Timestamp('2024-07-01', tz='US/Pacific').hour == 0 and time.localtime() and locale.getlocale()
"""),
    work("its own source", """
import inspect, sys, traceback
def f(): return 42
assert 'return 42' in inspect.getsource(f) and sys.argv == [__file__]
try: 1 / 0
except ZeroDivisionError: assert '1 / 0' in traceback.format_exc()
try: assert 'inspect' in open(__file__).read()
except FileNotFoundError: print('not on disk')
"""),
    work("sleep and alarms", """
import signal, time
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02); time.sleep(0.05); assert seen
signal.alarm(0); signal.raise_signal(signal.SIGALRM); assert len(seen) == 2
"""),
    work("seeds", """
import os, random, secrets, uuid
import numpy as np
random.seed(1); a = random.random(); random.seed(1); assert random.random() == a
np.random.seed(1); b = np.random.rand(); np.random.seed(1); assert np.random.rand() == b
assert len(os.urandom(8)) == 8 and secrets.token_hex(2) and uuid.uuid4() and np.random.default_rng().random() < 1
"""),
    work("what it asks about the machine", """
import multiprocessing, os, platform, resource, shutil, socket
assert os.cpu_count() and multiprocessing.cpu_count() and platform.platform() and os.getpid() > 0
assert len(os.sched_getaffinity(0)) >= 1 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert shutil.which('nothing') is None and socket.gethostname()
assert open('/proc/meminfo').read() and open('/proc/cpuinfo').read() and open('/proc/self/status').read()
from joblib import cpu_count
assert cpu_count() >= 1 and os.path.isdir(os.path.expanduser('~'))
"""),
    work("rights, times and priority set in passing", """
import os, pathlib
open('x', 'w').write('x'); os.chmod('x', 0o600); os.utime('x'); pathlib.Path('y').touch(); os.nice(0)
open('x', 'r+').truncate(0); assert os.path.getsize('x') == 0
os.sched_setaffinity(0, os.sched_getaffinity(0))
"""),
    work("subprocess that fails softly", """
import subprocess
try: version = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, timeout=5)
except (OSError, subprocess.SubprocessError) as error: print('no commit:', error)
"""),
    work("memory below the limit", """
import numpy as np
x = np.ones(40 << 20); x *= 2; assert x.sum() == 2 * (40 << 20); del x
y = bytearray(300 << 20)
"""),
    work("a megabyte of output", "for i in range(20000): print('x' * 50)"),
]  # fmt: skip
