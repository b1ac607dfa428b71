#!/bin/sh
# A program in the place of `tidegate`: relay benchmarks have the same result each time, except that `fanout` fails.
case "$*" in
  *fanout*)
    echo '{"brokers": [{"measures": {"throughput": 2000000}}]}'
    echo 'assertion `lost==0` is broken: 7' >&2
    exit 1
    ;;
  *--step*)
    echo '{"stages": [{"p50_ms": 0.02, "p95_ms": 0.3, "p99_ms": 0.25, "mean_ms": 0.02, "sent_per_s": 10, "fault_share": 0,
      "connected": 250}]}'
    ;;
  *) echo 'no JSON' ;;
esac
