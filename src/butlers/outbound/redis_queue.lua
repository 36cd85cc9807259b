-- The outbound queue in Redis. Each run is one call: KEYS[1] is the prefix with its hash tag, ARGV[1] the name of the
-- call. Times are microseconds; those in stored entries are ISO texts, which the caller brings along.
--
--   <prefix>:queued:<level>     sorted set of members by the time of their schedule
--   <prefix>:in_flight:<level>  sorted set of members by the end of their lease
--   <prefix>:entries            hash: key -> JSON text
--   <prefix>:counts             hash: number (of the last entry), acknowledged, dead_lettered
--   <prefix>:dead               list of JSON texts, the newest first
--
-- A level is a priority, 0 the first. A member is the level of an entry, its number in 16 digits, and its key: entries
-- of one moment are in the order of enqueueing. What scripts change stands first in the text of an entry, in a fixed
-- order; the key and the payload stand last and are never decoded here, because this Lua does not tell an empty list
-- from an empty object, nor large integers apart.

local base, LEVELS = KEYS[1], 3
local ENTRIES, COUNTS, DEAD = base .. ':entries', base .. ':counts', base .. ':dead'
-- Quotes inside of texts are escaped, so the first `,"key":` is the one.
local HEAD = '^{"scheduled_at":"([^"]*)","attempts":(%d+),"expirations":(%d+),"level":(%d),"number":(%d+),"lease":(.-)(),"key":'
local calls = {}

local function queued(level) return base .. ':queued:' .. level end
local function in_flight(level) return base .. ':in_flight:' .. level end
local function key_of(member) return string.sub(member, 18) end

local function load(key)
  local text = redis.call('HGET', ENTRIES, key)
  if not text then return nil end
  local scheduled, attempts, expirations, level, number, lease, last = string.match(text, HEAD)
  return {key = key, scheduled = scheduled, attempts = tonumber(attempts), expirations = tonumber(expirations),
    level = level, number = number, lease = lease, rest = string.sub(text, last),
    member = level .. string.format('%016d', number) .. key}
end

local function text_of(entry)
  return '{"scheduled_at":"' .. entry.scheduled .. '","attempts":' .. entry.attempts .. ',"expirations":'
    .. entry.expirations .. ',"level":' .. entry.level .. ',"number":' .. entry.number .. ',"lease":' .. entry.lease
    .. entry.rest
end

local function save(entry)
  local text = text_of(entry)
  redis.call('HSET', ENTRIES, entry.key, text)
  return text
end

-- The entry that is leased under this receipt.
local function held(key, receipt)
  local entry = load(key)
  local mine = '{"receipt":"' .. receipt .. '"'
  if entry and string.sub(entry.lease, 1, #mine) == mine then return entry end
  return nil
end

-- For each message: key, level, time, text of the entry up to its number, and text after it. Returns the new keys.
function calls.enqueue()
  local new = {}
  for i = 2, #ARGV, 5 do
    local key, level = ARGV[i], ARGV[i + 1]
    if redis.call('HEXISTS', ENTRIES, key) == 0 then
      local number = redis.call('HINCRBY', COUNTS, 'number', 1)
      redis.call('HSET', ENTRIES, key, ARGV[i + 3] .. string.format('%d', number) .. ARGV[i + 4])
      redis.call('ZADD', queued(level), ARGV[i + 2], level .. string.format('%016d', number) .. key)
      new[#new + 1] = key
    end
  end
  return new
end

-- The members of a set up to a time, with their times.
local function due(set, now, limit)
  return redis.call('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
end

-- Of two lists of members and times the first ones, in the order of both.
local function merge(one, other, limit)
  local merged, i, j = {}, 1, 1
  while #merged < 2 * limit and (one[i] or other[j]) do
    local is_other = not one[i]
    if one[i] and other[j] then
      local a, b = tonumber(one[i + 1]), tonumber(other[j + 1])
      is_other = b < a or (a == b and other[j] < one[i])
    end
    local list, at = is_other and other or one, is_other and j or i
    merged[#merged + 1], merged[#merged + 2] = list[at], list[at + 1]
    if is_other then j = j + 2 else i = i + 2 end
  end
  return merged
end

-- Returns the texts of what is leased now.
function calls.dequeue()
  local now, limit, expires, lease = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
  local taken = {}
  for level = 0, LEVELS do
    local room = limit - #taken
    if room <= 0 then break end
    local found, abandoned = due(queued(level), now, room), due(in_flight(level), now, room)
    if #abandoned > 0 then found = merge(found, abandoned, room) end
    for i = 1, #found, 2 do
      local entry = load(key_of(found[i]))
      if entry and entry.lease ~= 'null' then
        entry.expirations = entry.expirations + 1
      else
        redis.call('ZREM', queued(level), found[i])
      end
      if entry then
        entry.attempts, entry.lease = entry.attempts + 1, lease
        redis.call('ZADD', in_flight(level), expires, found[i])
        taken[#taken + 1] = save(entry)
      else  -- Redis has evicted what belongs to it
        redis.call('ZREM', in_flight(level), found[i])
      end
    end
  end
  return taken
end

-- Ends a lease together with its entry; the entry, or nil.
local function finish(key, receipt, count)
  local entry = held(key, receipt)
  if not entry then return nil end
  redis.call('ZREM', in_flight(entry.level), entry.member)
  redis.call('HDEL', ENTRIES, key)
  redis.call('HINCRBY', COUNTS, count, 1)
  return entry
end

function calls.ack()
  return finish(ARGV[2], ARGV[3], 'acknowledged') and 1 or 0
end

function calls.dead_letter()
  local entry = finish(ARGV[2], ARGV[3], 'dead_lettered')
  if not entry then return 0 end
  -- A text that begins with the reason, and goes on like that of the entry.
  redis.call('LPUSH', DEAD, '{"reason":' .. ARGV[4] .. ',' .. string.sub(text_of(entry), 2))
  redis.call('LTRIM', DEAD, 0, tonumber(ARGV[5]) - 1)
  return 1
end

-- key, receipt, time, its text, how many attempts do not count
function calls.nack()
  local entry = held(ARGV[2], ARGV[3])
  if not entry then return 0 end
  redis.call('ZREM', in_flight(entry.level), entry.member)
  redis.call('ZADD', queued(entry.level), ARGV[4], entry.member)
  entry.scheduled, entry.attempts, entry.lease = ARGV[5], entry.attempts - tonumber(ARGV[6]), 'null'
  save(entry)
  return 1
end

-- time, its text, keys
function calls.reschedule()
  local at, moved = tonumber(ARGV[2]), 0
  for i = 4, #ARGV do
    local entry = load(ARGV[i])
    if entry and entry.lease == 'null' then
      local set = queued(entry.level)
      if at < tonumber(redis.call('ZSCORE', set, entry.member)) then
        redis.call('ZADD', set, ARGV[2], entry.member)
        entry.scheduled = ARGV[3]
        save(entry)
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
    if entry and entry.lease == 'null' then
      redis.call('ZREM', queued(entry.level), entry.member)
      redis.call('HDEL', ENTRIES, entry.key)
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
    for _, member in ipairs(redis.call('ZRANGE', queued(level), 0, room - 1)) do
      found[#found + 1] = redis.call('HGET', ENTRIES, key_of(member))
    end
  end
  return found
end

function calls.dead_letters()
  return redis.call('LRANGE', DEAD, 0, tonumber(ARGV[2]) - 1)
end

-- How many members the sets of all levels have, and the earliest time among them; '' for none.
local function summed(set_of)
  local size, first = 0, ''
  for level = 0, LEVELS do
    size = size + redis.call('ZCARD', set_of(level))
    local time = redis.call('ZRANGE', set_of(level), 0, 0, 'WITHSCORES')[2]
    if time and (first == '' or tonumber(time) < tonumber(first)) then first = time end
  end
  return size, first
end

-- Returns what is queued, in flight and ended, and the earliest schedule and the earliest end of a lease; '' for none.
function calls.stats()
  local waiting, oldest = summed(queued)
  local leased, lease = summed(in_flight)
  local ended = redis.call('HMGET', COUNTS, 'acknowledged', 'dead_lettered')
  return {waiting, leased, ended[1] or 0, ended[2] or 0, oldest, lease}
end

return calls[ARGV[1]]()
