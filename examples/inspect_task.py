"""An Inspect task whose tool runs in a sandbox; a scripted model stands in for a real one.

Needs `pip install 'ringfence[inspect]'`.
"""

import tempfile

import inspect_ai
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

MODEL = "mockllm/model"

sales = Task(
    dataset=[
        Sample(
            input="How many sales are in sales.csv?",
            files={"sales.csv": "day,amount\nmonday,12\ntuesday,30\n"},
            target="2",
        )
    ],
    solver=[use_tools(bash(timeout=10)), generate()],
    scorer=includes(),
    sandbox="ringfence",  # or ("ringfence", "container"), or a file with settings
)

script = [
    ModelOutput.for_tool_call(MODEL, "bash", {"command": "tail -n +2 sales.csv | wc -l; id -u"}),
    ModelOutput.from_content(MODEL, "There are 2 sales."),
]

for output in script:
    output.usage = ModelUsage()  # else the tokens are counted, by a table from the network

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as logs:
        model = get_model(MODEL, custom_outputs=script)
        (log,) = inspect_ai.eval(sales, model=model, log_dir=logs, display="none")
        assert log.status == "success", log.error
        assert log.samples
        assert log.results
        for message in log.samples[0].messages:
            print(f"{message.role}: {message.text.strip()}")
        print("accuracy:", log.results.scores[0].metrics["accuracy"].value)
