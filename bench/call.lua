-- Posts one JSON body again and again; tells what came of it as one line of JSON.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Content-Type"] = "application/json"

-- Where a number is asked for, every request has another one.
if string.find(wrk.body, "@N@", 1, true) then
  local body, began, count = wrk.body, tostring(os.time()), 0

  function request()
    count = count + 1
    return wrk.format(nil, nil, nil, (string.gsub(body, "@N@", began .. "n" .. count)))
  end
end

local mark = os.getenv("BENCH_MARK") or ""
local thread

function setup(one)
  thread = one
  thread:set("wrong", 0)
end

if mark ~= "" then
  wrong = 0

  function response(status, headers, body)
    if status == 200 and not string.find(body, mark, 1, true) then wrong = wrong + 1 end
  end
end

function done(summary, latency, requests)
  local failed = summary.errors
  print(string.format(
    '{"requests": %d, "micros": %d, "p50": %.1f, "p99": %.1f, "failed": %d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    failed.connect + failed.read + failed.write + failed.status + failed.timeout + thread:get("wrong")))
end
