"""Programs that want to change the next run. After each, the reference program must print what it always prints."""

from case import Case


def poison(name: str, program: str, statuses=("ok", "error"), **options) -> Case:
    return Case("poisoning", name, program, statuses, **options)


CASES = [
    poison("numpy", """
        import numpy
        numpy.zeros = numpy.load = numpy.array = numpy.random.default_rng = lambda *_, **__: 'poisoned'
        numpy.add = numpy.ndarray = None
    """),
    poison("open, print and import", """
        import builtins
        builtins.open = builtins.print = builtins.__import__ = builtins.sum = lambda *_, **__: 'poisoned'
    """),
    poison("sleep and clocks", """
        import time
        time.sleep = time.monotonic = time.perf_counter = time.time = lambda *_: 0.0
        while True: pass
    """, ("timeout",), time_limit_s=0.4),
    poison("random state", """
        import numpy, random
        random.seed(99); numpy.random.seed(99); random.getstate = None
        random.random = lambda: 0.5; numpy.random.rand = lambda *_: 0.5
    """),
    poison("modules and import machinery", """
        import sys, types
        for name in ('numpy', 'pandas', 'random', 'hashlib', 'os', 'json'): sys.modules[name] = types.ModuleType(name)
        sys.meta_path.clear(); sys.path_hooks.clear(); sys.path[:] = ['/nowhere']; sys.path_importer_cache.clear()
    """),
    poison("functions of the run in its frames and the collector", """
        import gc, types
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType) and thing.__module__ in ('sandbox_program', 'sandbox_zygote', '__main__'):
                try: thing.__code__ = (lambda *_, **__: None).__code__
                except (ValueError, TypeError): pass
    """),
    poison("the number 256", """
        import ctypes
        ctypes.c_uint32.from_address(id(256) + 24).value = 7
    """, ("ok", "error", "timeout"), time_limit_s=1.0),
    poison("code of a shared library in memory", """
        import re
        for line in open('/proc/self/maps'):
            if 'numpy' in line and ' r-xp ' in line:
                start = int(line.split('-')[0], 16)
                try:
                    with open('/proc/self/mem', 'r+b', 0) as memory: memory.seek(start); memory.write(b'\\xcc' * 4096)
                except OSError as error: print('refused:', error)
    """),
    poison("a library mapped for sharing", """
        import mmap, numpy, os
        path = numpy.__file__
        for flags in (os.O_RDWR, os.O_RDONLY):
            try: mmap.mmap(os.open(path, flags), 0, mmap.MAP_SHARED, mmap.PROT_WRITE | mmap.PROT_READ); print('ESCAPED')
            except OSError as error: print('refused:', error)
            try: mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_READ); print('read only is fine')
            except OSError as error: print('refused:', error)
    """, needs=("landlock|user",)),
    poison("modules beside the program", """
        for name in ('numpy', 'pandas', 'random', 'hashlib', 'sitecustomize', 'usercustomize', 'json'):
            open(name + '.py', 'w').write('raise SystemExit("poisoned")')
    """),
    poison("modules above the program", """
        for folder in ('..', '../..', '/tmp'):
            for name in ('numpy.py', 'random.py', 'sitecustomize.py'):
                try: open(f'{folder}/{name}', 'x').write('raise SystemExit(\\'poisoned\\')'); print('ESCAPED', folder, name)
                except OSError as error: print('refused:', error); continue
                __import__('os').remove(f'{folder}/{name}')
    """, needs=("landlock",)),
    poison("process settings", """
        import locale, os, resource, signal, sys
        os.umask(0o777); os.environ.clear(); os.nice(19); os.chdir('/')
        for n in range(1, 65):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        for kind in range(16):
            try: resource.setrlimit(kind, (0, 0))
            except (OSError, ValueError): pass
        sys.setswitchinterval(100); sys.setrecursionlimit(60); sys.flags = None
    """, ("ok", "error", "oom", "timeout")),
    poison("library settings", """
        import gc, numpy, pandas, sklearn, warnings
        numpy.seterr(all='raise'); numpy.set_printoptions(precision=1); pandas.set_option('display.max_rows', 1)
        sklearn.set_config(assume_finite=True, transform_output='pandas'); warnings.simplefilter('error'); gc.disable()
    """),
    poison("its directory", """
        import os, shutil
        here = os.getcwd()
        shutil.rmtree(here, ignore_errors=True)
        try: os.rmdir(here)
        except OSError as error: print('refused:', error)
        try: os.rename(here, here + '-moved'); os.symlink('/', here); print('moved')
        except OSError as error: print('refused:', error)
    """, needs=("landlock|user",)),
    poison("caches of temporary files", """
        import os, tempfile
        for name in ('joblib_memmapping_folder_1', '.cache', '.config', '.local', 'pymp-x'):
            for folder in (tempfile.gettempdir(), os.path.expanduser('~'), '.'):
                try: os.makedirs(os.path.join(folder, name), exist_ok=True)
                except OSError as error: print('refused:', error)
    """),
    poison("names of the system", """
        @TOOLS@
        import multiprocessing.resource_tracker
        attempt('semaphore', lambda: __import__('_multiprocessing').SemLock(1, 1, 1, '/nomle-escaped', True))
        attempt('file in /dev/shm', lambda: open('/dev/shm/sem.nomle-escaped2', 'w').write('x'))
        for name in ('sem.nomle-escaped', 'sem.nomle-escaped2'):
            if os.path.exists('/dev/shm/' + name): os.remove('/dev/shm/' + name)
    """, needs=("landlock",)),
]  # fmt: skip
