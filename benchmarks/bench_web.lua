-- For wrk: posts the jobs of a file in turn, each with another length each time, so that no answer can be one that was given before.
-- The file has one job a line with LENGTH@base in place of its length; `fresh` 0 keeps the lengths as they are.

local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  jobs, turn, fresh = {}, 0, tonumber(args[2])
  for line in io.lines(args[1]) do
    local before, base, after = line:match("^(.-)LENGTH@(%d+)(.*)$")
    jobs[#jobs + 1] = { before, tonumber(base), after }
  end
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  local job = jobs[turn % #jobs + 1]
  local round = math.floor(turn / #jobs)
  turn = turn + 1
  local length = job[2] + fresh * 8 * (2 * round + number)
  return wrk.format(nil, nil, nil, job[1] .. length .. job[3])
end

function done(summary, latency, requests)
  io.write(string.format("RESULT %d %d %.3f %.3f %d\n", summary.requests, summary.duration, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status + summary.errors.timeout + summary.errors.read + summary.errors.connect))
end
