"""One trial of Harbor in a hardened container, with Harbor's oracle for an agent.

It needs Python 3.12, `pip install 'ringfence[container,harbor]'`, an engine and an image: the one
that `ringfence image build` makes, or any other that is named as an argument. The task is written
here; a data set's tasks run in the same way if their image is a finished one and they work in
`/workspace`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE = sys.argv[1] if len(sys.argv) > 1 else "ringfence-sandbox:latest"
ENVIRONMENT = "ringfence.adapters.harbor:HarborEnvironment"

TASK = {
    "instruction.md": "Count the words in words.txt, and write their number into count.txt.\n",
    "environment/words.txt": "one two three\n",
    "solution/solve.sh": "#!/bin/sh\nwc -w < words.txt > count.txt\n",
    "tests/test.sh": """#!/bin/sh
if [ "$(cat /workspace/count.txt)" = 3 ]; then n=1; else n=0; fi
echo $n > /logs/verifier/reward.txt
""",
    "task.toml": f"""version = "1.0"
[environment]
docker_image = "{IMAGE}"
workdir = "/workspace"
network_mode = "no-network"
cpus = 1
memory_mb = 512
""",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        task, jobs = Path(place) / "task", Path(place) / "jobs"
        for name, text in TASK.items():
            (task / name).parent.mkdir(parents=True, exist_ok=True)
            (task / name).write_text(text)
        program = Path(sys.executable).parent / "harbor"
        words = ["run", "--path", task, "--agent", "oracle", "--env", ENVIRONMENT]
        done = subprocess.run([program, *words, "--yes", "--jobs-dir", jobs, "--job-name", "job"])
        results = [json.loads(path.read_text()) for path in jobs.glob("job/*/result.json")]
        if done.returncode or not results:
            return 1
        (result,) = results
        if result["exception_info"]:
            print(result["exception_info"]["exception_message"], file=sys.stderr)
            return 1
        print("rewards:", result["verifier_result"]["rewards"])
        return 0


if __name__ == "__main__":
    sys.exit(main())
