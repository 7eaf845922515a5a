-- Posts one JSON body again and again; tells what came of it as one line of JSON.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")

function done(summary, latency, requests)
  local failed = summary.errors
  print(string.format(
    '{"requests": %d, "micros": %d, "p50": %.1f, "p99": %.1f, "failed": %d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    failed.connect + failed.read + failed.write + failed.status + failed.timeout))
end
