-- The outbound queue in Redis. Each run is one call: KEYS[1] is the prefix with its hash tag, ARGV[1] the name of the
-- call. All times are microseconds; those in stored entries are ISO texts, which the caller brings along.
--
--   <prefix>:queued:<level>     sorted set of members by the time of their schedule
--   <prefix>:in_flight:<level>  sorted set of members by the end of their lease
--   <prefix>:entries            hash: key -> JSON text
--   <prefix>:counts             hash: number (of the last entry), acknowledged, dead_lettered
--   <prefix>:dead               list of JSON texts, the newest first
--
-- A level is a priority, 0 the first. A member is the number of an entry, in 16 digits, and its key: entries of one
-- moment are in the order of enqueueing. The payload stands last in an entry and is never decoded here, because this
-- Lua does not tell an empty list from an empty object, nor large integers apart.

local base, LEVELS = KEYS[1], 3
local calls = {}

local function queued(level) return base .. ':queued:' .. level end
local function in_flight(level) return base .. ':in_flight:' .. level end
local function member(entry, key) return string.format('%016d', entry.number) .. key end

-- Returns the entry without its payload, and the rest of the text from the payload on.
local function load(key)
  local text = redis.call('HGET', base .. ':entries', key)
  if not text then return nil end
  -- Quotes inside of texts are escaped, so what looks like this is it.
  local at = string.find(text, ',"payload":', 1, true)
  return cjson.decode(string.sub(text, 1, at - 1) .. '}'), string.sub(text, at)
end

local function save(key, entry, rest)
  local text = string.sub(cjson.encode(entry), 1, -2) .. rest
  redis.call('HSET', base .. ':entries', key, text)
  return text
end

-- The entry that is leased under this receipt, and the rest of its text.
local function held(key, receipt)
  local entry, rest = load(key)
  if entry and entry.receipt == receipt then return entry, rest end
  return nil
end

-- now, then for each message: key, level, time, number of attempts, text up to the number, text from the payload on.
-- Returns the keys that are new.
function calls.enqueue()
  local new = {}
  for i = 2, #ARGV, 5 do
    local key, level, at, head, rest = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if redis.call('HEXISTS', base .. ':entries', key) == 0 then
      local number = redis.call('HINCRBY', base .. ':counts', 'number', 1)
      redis.call('HSET', base .. ':entries', key, head .. string.format('%d', number) .. rest)
      redis.call('ZADD', queued(level), at, string.format('%016d', number) .. key)
      new[#new + 1] = key
    end
  end
  return new
end

local function due(set, now, limit)
  return redis.call('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
end

-- Of two lists of members and times the first ones, in order: {member, whether it is the second list's}.
local function merge(one, other, limit)
  local merged, i, j = {}, 1, 1
  while #merged < limit and (one[i] or other[j]) do
    local is_other = not one[i]
    if one[i] and other[j] then
      local a, b = tonumber(one[i + 1]), tonumber(other[j + 1])
      is_other = b < a or (a == b and other[j] < one[i])
    end
    if is_other then
      merged[#merged + 1], j = {other[j], true}, j + 2
    else
      merged[#merged + 1], i = {one[i], false}, i + 2
    end
  end
  return merged
end

-- Returns the texts of what is leased now.
function calls.dequeue()
  local now, limit, expires, iso, receipt, worker = unpack(ARGV, 2)
  local taken = {}
  limit = tonumber(limit)
  for level = 0, LEVELS do
    local room = limit - #taken
    if room <= 0 then break end
    local found = merge(due(queued(level), now, room), due(in_flight(level), now, room), room)
    for _, one in ipairs(found) do
      local member, is_expired = one[1], one[2]
      local key = string.sub(member, 17)
      local entry, rest = load(key)
      redis.call('ZREM', is_expired and in_flight(level) or queued(level), member)
      if entry then
        entry.attempts = entry.attempts + 1
        if is_expired then entry.expirations = entry.expirations + 1 end
        entry.receipt, entry.worker, entry.lease_expires_at = receipt, worker, iso
        redis.call('ZADD', in_flight(level), expires, member)
        taken[#taken + 1] = save(key, entry, rest)
      end
    end
  end
  return taken
end

function calls.ack()
  local key, receipt = ARGV[2], ARGV[3]
  local entry = held(key, receipt)
  if not entry then return 0 end
  redis.call('ZREM', in_flight(entry.level), member(entry, key))
  redis.call('HDEL', base .. ':entries', key)
  redis.call('HINCRBY', base .. ':counts', 'acknowledged', 1)
  return 1
end

function calls.nack()
  local key, receipt, at, iso, back = unpack(ARGV, 2)
  local entry, rest = held(key, receipt)
  if not entry then return 0 end
  redis.call('ZREM', in_flight(entry.level), member(entry, key))
  redis.call('ZADD', queued(entry.level), at, member(entry, key))
  entry.scheduled_at, entry.attempts = iso, entry.attempts - tonumber(back)
  entry.receipt, entry.worker, entry.lease_expires_at = nil, nil, nil
  save(key, entry, rest)
  return 1
end

function calls.dead_letter()
  local key, receipt, reason, most = unpack(ARGV, 2)
  local entry, rest = held(key, receipt)
  if not entry then return 0 end
  redis.call('ZREM', in_flight(entry.level), member(entry, key))
  redis.call('HDEL', base .. ':entries', key)
  redis.call('HINCRBY', base .. ':counts', 'dead_lettered', 1)
  entry.reason = reason
  redis.call('LPUSH', base .. ':dead', string.sub(cjson.encode(entry), 1, -2) .. rest)
  redis.call('LTRIM', base .. ':dead', 0, tonumber(most) - 1)
  return 1
end

-- time, its text, keys
function calls.reschedule()
  local at, iso, moved = ARGV[2], ARGV[3], 0
  for i = 4, #ARGV do
    local entry, rest = load(ARGV[i])
    if entry and not entry.receipt then
      local set, name = queued(entry.level), member(entry, ARGV[i])
      if tonumber(at) < tonumber(redis.call('ZSCORE', set, name)) then
        redis.call('ZADD', set, at, name)
        entry.scheduled_at = iso
        save(ARGV[i], entry, rest)
        moved = moved + 1
      end
    end
  end
  return moved
end

-- keys
function calls.remove()
  local removed = 0
  for i = 2, #ARGV do
    local entry = load(ARGV[i])
    if entry and not entry.receipt then
      redis.call('ZREM', queued(entry.level), member(entry, ARGV[i]))
      redis.call('HDEL', base .. ':entries', ARGV[i])
      removed = removed + 1
    end
  end
  return removed
end

function calls.peek()
  local limit, found = tonumber(ARGV[2]), {}
  for level = 0, LEVELS do
    local room = limit - #found
    if room <= 0 then break end
    for _, name in ipairs(redis.call('ZRANGE', queued(level), 0, room - 1)) do
      found[#found + 1] = redis.call('HGET', base .. ':entries', string.sub(name, 17))
    end
  end
  return found
end

function calls.dead_letters()
  return redis.call('LRANGE', base .. ':dead', 0, tonumber(ARGV[2]) - 1)
end

-- Returns what is queued, in flight and ended, the earliest schedule and the earliest end of a lease; '' for none.
function calls.stats()
  local sums, firsts = {0, 0}, {'', ''}
  for level = 0, LEVELS do
    for i, set in ipairs({queued(level), in_flight(level)}) do
      sums[i] = sums[i] + redis.call('ZCARD', set)
      local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
      if first and (firsts[i] == '' or tonumber(first) < tonumber(firsts[i])) then firsts[i] = first end
    end
  end
  local ended = redis.call('HMGET', base .. ':counts', 'acknowledged', 'dead_lettered')
  return {sums[1], sums[2], ended[1] or 0, ended[2] or 0, firsts[1], firsts[2]}
end

return calls[ARGV[1]]()
