#!/usr/bin/env bash
# timeout: 300
# The page of `lockstep report RUN` in headless Chromium, 375 and 1,280 pixels wide, in light and dark: no message in
# the console, data in each chart, and no overlapping text. The second run is a long one of a language model on 70
# ranks.
source test/support/check.sh
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "skipped: Chromium is not installed (Debian: chromium)"; exit 77; }

export LOCKSTEP_CACHE=none
mpirun --oversubscribe -n 2 "$lockstep" train jobs/configs/quickstart.yaml model.width=16 data.train=synthetic \
  data.validation=synthetic data.image_size=8 data.synthetic_samples=48 train.global_batch=12 train.epochs=4 \
  cpu.threads=1 log.every_steps=1 log.progress=false run.directory="$work" run.name=a trace=true >"$work/train" 2>&1
"$lockstep" report "$work/a" >"$work/text"
in_browser() { python3 test/support/page_in_browser.py "$browser" "$1" "$work/browser"; }
check "a short run with a trace" in_browser "$work/a/report.html"

mkdir "$work/b"
name=a-name-of-a-run-that-is-much-longer-than-a-phone-is-wide-and-has-no-blank
sed "s/^  name: a  # .*$/  name: $name/" "$work/a/config.yaml" >"$work/b/config.yaml"
python3 - "$work/b/metrics.jsonl" <<'PYTHON'
import json, math, sys
ranks = range(70)
with open(sys.argv[1], "w") as out:
    for i in range(1, 3001):
        step = {"event": "step", "time_unix": 1.7e9 + i, "step": 100 * i, "epoch": 1 + i // 500, "loss": 1 + 50 / i,
                "perplexity": math.exp(min(9, 1 + 50 / i)), "learning_rate": 1e-7 * i, "gradient_norm": 1e4 / i ** 2,
                "step_seconds": 75 + i % 7, "tokens_per_second": 123456789.5, "data_wait_seconds": 1e-6,
                "exposed_communication_seconds": 3.5, "memory_bytes": 7.5e10, "ranks": 70, "last_step": 10000000}
        if i % 100 == 0:
            step["per_rank"] = {"host": [f"node{r}" for r in ranks], "loss": [2.5 for r in ranks],
                                "data_wait_seconds": [0.1 * r for r in ranks],
                                "exposed_communication_seconds": [0.3 * r for r in ranks],
                                "memory_bytes": [7e10 + 1e8 * r for r in ranks]}
        out.write(json.dumps(step) + "\n")
    out.write(json.dumps({"event": "evaluation", "step": 300000, "loss": 1.5, "perplexity": 4.4}) + "\n")
PYTHON
"$lockstep" report "$work/b" >"$work/text"
check "a long run on many ranks" in_browser "$work/b/report.html"

export LOCKSTEP_MPIRUN="${MPIRUN:-mpirun} --oversubscribe --bind-to none"
"$lockstep" scaling run jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8 \
  data.synthetic_samples=48 cpu.threads=1 train.batch_per_rank=4 --weak --out "$work/study" --ranks 1,2,3 --repeat 2 --steps 16 \
  --warmup 4 >"$work/text"
"$lockstep" scaling report "$work/study" --accept warm-up --accept neighbours --predict 16,1024 --format html >"$work/text"
check "a scaling study" in_browser "$work/study/report.html"
finish
