#!/usr/bin/env bash
# lockstep report memory: peak, mean and mode from our own logs and from logs of nvidia-smi, and the messages for other
# files.
source test/support/check.sh
report() { "$lockstep" report memory "$@"; }

header='time_unix,gpu,memory_used_mib,memory_total_mib,utilisation_percent'
{
  echo "$header"
  for used in 19000 25740 25740 26532; do echo "1700000000.5,0,$used,81559,97"; done
  for used in 7 9 9 7 1; do echo "1700000001.5,3,$used,81559,"; done
} >"$work/gpu_memory_log_node1.csv"
cat >"$work/expected" <<'TEXT'
[gpu_memory_log - GPU 0] Peak = 26532 MiB, Avg = 24253.00 MiB, Mode = 25740 MiB
[gpu_memory_log - GPU 3] Peak = 9 MiB, Avg = 6.60 MiB, Mode = 7 MiB
TEXT
check "reports each GPU, with the smaller of two modes" diff "$work/expected" <(report "$work/gpu_memory_log_node1.csv")

printf 'time_unix,rank,pid,cpu_percent,rss_mib\n1.000,1,77,99.5,512\n6.000,1,77,100.0,514\n' >"$work/process_log_a_b.example.csv"
check "reports each process" diff <(echo '[process_log - rank 1] Peak = 514 MiB, Avg = 513.00 MiB, Mode = 512 MiB') \
  <(report "$work/process_log_a_b.example.csv")

# A log of nvidia-smi, with units; a second run was appended to the file, and its lines have DOS line endings.
cat >"$work/mine.csv" <<'TEXT'
timestamp, index, memory.used [MiB], utilization.gpu [%]
2026/11/21 20:00:00.123, 0, 26532 MiB, 98 %
2026/11/21 20:00:00.125, 1, 100 MiB, 0 %
timestamp, index, memory.used [MiB], utilization.gpu [%]
2026/11/21 20:00:05.123, 0, 26530 MiB, 98 %
TEXT
sed -i 's/$/\r/' "$work/mine.csv"
cat >"$work/expected" <<'TEXT'
[mine - GPU 0] Peak = 26532 MiB, Avg = 26531.00 MiB, Mode = 26530 MiB
[mine - GPU 1] Peak = 100 MiB, Avg = 100.00 MiB, Mode = 100 MiB
TEXT
check "reads a file of nvidia-smi" diff "$work/expected" <(report "$work/mine.csv")
printf 'index, memory.used [MiB]\n0, 5\n' >"$work/nounits.csv"
check "  without units" diff <(echo '[nounits - GPU 0] Peak = 5 MiB, Avg = 5.00 MiB, Mode = 5 MiB') <(report "$work/nounits.csv")

printf '# Elapsed time   CPU (%%)     Real (MB)   Virtual (MB) \n 0.000 0.000 10.000 50.000\n 1.001 99.900 12.500 60.000\n 2.0' >"$work/cpu_memory_log.txt"
check "reads a log of psrecord" diff <(echo '[cpu_memory_log - rank 0] Peak = 12.5 MiB, Avg = 11.25 MiB, Mode = 10 MiB') \
  <(report "$work/cpu_memory_log.txt")

check "several files have different names" diff <(cat <<TEXT
$work/nounits.csv
[nounits - GPU 0] Peak = 5 MiB, Avg = 5.00 MiB, Mode = 5 MiB
$work/process_log_a_b.example.csv
[process_log - rank 1] Peak = 514 MiB, Avg = 513.00 MiB, Mode = 512 MiB
TEXT
) <(report "$work/nounits.csv" "$work/process_log_a_b.example.csv")
report "$work/gpu_memory_log_node1.csv" "$work/process_log_a_b.example.csv" --json >"$work/json" 2>/dev/null
check "--json" python3 - "$work/json" <<'PYTHON'
import json, sys
gpu0, gpu3, rank1 = json.load(open(sys.argv[1]))["memory"]
assert gpu0.pop("file").endswith("/gpu_memory_log_node1.csv")
assert gpu0 == {"name": "gpu_memory_log", "gpu": 0, "samples": 4, "peak_mib": 26532, "mean_mib": 24253, "mode_mib": 25740}
assert (gpu3["gpu"], rank1["rank"], rank1["mode_mib"]) == (3, 1, 512)
PYTHON
check "an incomplete last line is ignored" bash -c "printf '%s\n1,0,5,9,1\n2,0,70' '$header' >'$work/open.csv' &&
  '$lockstep' report memory '$work/open.csv' | grep -qF 'Peak = 5 MiB'"

# Files of other kinds: the message names the file, the line, what was expected, and the remedy; the exit status is 2.
bad_file() { printf "$2" >"$work/bad.csv"; check "$1" refused 2 "$3" "$lockstep" report memory "$work/bad.csv"; }
bad_file "a damaged log of psrecord" '# Elapsed time CPU (%%)\n1.0 x\n' 'bad.csv: expected seconds, CPU and memory in each line of psrecord, found "1.0 x"'
bad_file "an empty file" '' 'bad.csv: expected a line of column names and lines of numbers, found nothing'
bad_file "only column names" "$header\n" 'bad.csv: expected lines of numbers below the column names, found none'
bad_file "other columns" 'a,b\n1,2\n' 'bad.csv:1: expected the names of columns, .*memory_used_mib .*found "a,b"'
bad_file "no column with memory" 'index, utilization.gpu\n0, 3\n' 'bad.csv:1: expected the names of columns'
bad_file "text instead of a number" "$header\n1,0,5,9,1\n1,0,much,9,1\n" 'bad.csv:3: expected the columns .*found "1,0,much,9,1"'
bad_file "a figure that nvidia-smi does not know" 'index, memory.used [MiB]\n0, [N/A]\n' 'bad.csv:2: .*found "0, \[N/A\]"'
bad_file "negative memory" "$header\n1,0,-5,9,1\n" 'bad.csv:2:'
bad_file "a short line" "$header\n1,0\n" 'bad.csv:2: expected the columns'
bad_file "another unit" 'index, memory.used [MiB]\n0, 5 GiB\n' 'bad.csv:2: .*found "0, 5 GiB"'
check "  and the remedy is the help of the command" grep -q 'remedy: see `lockstep report memory --help`' "$work/.refused"
check "  which names the files" bash -c "'$lockstep' report memory --help | grep -q 'Files of RUN/usage'"
check "bytes that are not text" refused 2 ':1: expected the names of columns' "$lockstep" report memory data/samples/cifar10_test.h5
check "a missing file" refused 2 'nowhere.csv: No such file' "$lockstep" report memory "$work/nowhere.csv"
check "a folder" refused 2 'is not a regular file' "$lockstep" report memory "$work"
check "no file" refused 2 'FILE is required' "$lockstep" report memory
check "the help explains the mode" bash -c "'$lockstep' report memory --help | grep -q 'of equally frequent amounts, the smallest'"
finish
