"""Fake SLURM commands: jobs are local processes that start at once; a folder records them."""

import sys
from pathlib import Path

COMMON = """#!{python}
import os, re, subprocess, sys
from pathlib import Path
JOBS = Path({jobs!r})

def start(job, script):
    main, _, index = job.partition("_")
    task = dict(SLURM_ARRAY_JOB_ID=main, SLURM_ARRAY_TASK_ID=index) if index else dict()
    env = os.environ | task | dict(SLURM_JOB_ID=main + index, SLURM_NTASKS="1", SLURM_STEP_ID="0",
        SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_JOB_NUM_NODES="1")
    (JOBS / (job + ".code")).unlink(missing_ok=True)
    times = JOBS / (job + ".times")  # number of starts: only the last one counts
    times.write_text(times.read_text() + "x" if times.exists() else "x")
    count = len(times.read_text())
    line = f"bash {{script}}; c=$?; [ $(wc -c < {{times}}) = {{count}} ] && echo $c > {{JOBS}}/{{job}}.code"
    subprocess.Popen(["bash", "-c", line], env=env, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (JOBS / (job + ".script")).write_text(script)
"""
SBATCH = """
number = 100 + len(list(JOBS.glob("*.sbatch")))
text = Path(sys.argv[1]).read_text()
script = JOBS / f"{number}.sbatch"
script.write_text(text)
array = re.search(r"--array=0-(\\d+)", text)
for job in [f"{number}_{n}" for n in range(int(array[1]) + 1)] if array else [str(number)]:
    start(job, str(script))
print("Submitted batch job", number)
"""
SACCT = """
print("JobID|State|NodeList")
for script in sorted(JOBS.glob("*.script")):
    code = script.with_suffix(".code")
    state = "RUNNING" if not code.exists() else "FAILED" if code.read_text().strip() != "0" else "COMPLETED"
    print(f"{script.stem}|{state}|here")
"""
SCONTROL = """
assert sys.argv[1] == "requeue"
start(sys.argv[2], (JOBS / (sys.argv[2] + ".script")).read_text())
"""
SRUN = """
words, streams = sys.argv[1:], {"--output": 1, "--error": 2}
while words[0].startswith("--"):
    option = words.pop(0)
    if option in streams:
        name = words.pop(0).replace("%t", "0")
        for mark, known in (("%A", "ARRAY_JOB"), ("%a", "ARRAY_TASK"), ("%j", "JOB")):
            name = name.replace(mark, os.environ.get(f"SLURM_{known}_ID", ""))
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), streams[option])
os.execvp(words[0], words)
"""


def install_commands(folder: Path) -> Path:
    """Write the commands to a folder, which must be on PATH; return the folder that records the jobs."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True)
    programs = {"sbatch": SBATCH, "sacct": SACCT, "scontrol": SCONTROL, "srun": SRUN}
    for name, text in programs.items():
        path = folder / name
        path.write_text(COMMON.format(python=sys.executable, jobs=str(jobs)) + text)
        path.chmod(0o755)
    return jobs
