"""One rank of several: trains what the JSON file names, one run after the other, and prints their exit codes.

One process for all of them, because importing torch takes longer than such a run.
"""

import json
import os
import sys
from pathlib import Path

from experiments.run import main

codes = []
for arguments, port in json.loads(Path(sys.argv[1]).read_text()):
    environment = dict(os.environ)  # which a run completes
    os.environ["MASTER_PORT"] = str(port)
    codes.append(main(arguments))
    os.environ.clear()
    os.environ.update(environment)
print(json.dumps(codes))
