//! Scripts that Redis runs.

/// Decrements the entry counts of separately stored bodies and removes bodies without entries.
pub(super) const RELEASE_BODIES_LUA: &str = r"
local function release_bodies(found)
  for _, m in ipairs(found) do
    if string.byte(m, 13) == 1 then
      local id = string.sub(m, 14, 25)
      if redis.call('DECR', ARGV[1] .. ':n:' .. id) <= 0 then
        redis.call('DEL', ARGV[1] .. ':n:' .. id, ARGV[1] .. ':m:' .. id)
      end
    end
  end
end
";

/// Arguments: triples of session, first and last sequence number.
pub(super) const COMPLETE_ENTRIES_SCRIPT: &str = r"
for i = 2, #ARGV, 3 do
  local q, s = ARGV[1] .. ':q:' .. ARGV[i], ARGV[1] .. ':s:' .. ARGV[i]
  local found = redis.call('ZRANGEBYSCORE', q, ARGV[i + 1], ARGV[i + 2])
  redis.call('ZREMRANGEBYSCORE', q, ARGV[i + 1], ARGV[i + 2])
  release_bodies(found)
  if redis.call('EXISTS', s) == 1 then
    for seq = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) do
      local name = string.format('%.0f', seq)
      redis.call('HDEL', s, 'e' .. name, 'x' .. name)
    end
  end
end
return 0
";

pub(super) const END_SESSION_SCRIPT: &str = r"
local q = ARGV[1] .. ':q:' .. ARGV[2]
local found = redis.call('ZRANGE', q, 0, ARGV[3] - 1)
if #found == 0 then
  redis.call('DEL', ARGV[1] .. ':s:' .. ARGV[2])
  return 0
end
redis.call('ZREMRANGEBYRANK', q, 0, #found - 1)
release_bodies(found)
return #found
";

/// Returns the number of entries, bytes of bodies, first and last sequence number.
pub(super) const SUMMARY_SCRIPT: &str = r"
local n, bytes = redis.call('ZCARD', ARGV[1]), 0
for at = 0, n - 1, 500 do
  for _, m in ipairs(redis.call('ZRANGE', ARGV[1], at, at + 499)) do
    local a, b, c, d = string.byte(m, 9, 12)
    bytes = bytes + ((a * 256 + b) * 256 + c) * 256 + d
  end
end
if n == 0 then return {0, 0, '', ''} end
local first = redis.call('ZRANGE', ARGV[1], 0, 0)[1]
local last = redis.call('ZRANGE', ARGV[1], -1, -1)[1]
return {n, bytes, string.sub(first, 1, 8), string.sub(last, 1, 8)}
";
