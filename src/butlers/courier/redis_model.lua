-- The courier's streams in Redis. Every call of a gateway is the run of one script, and therefore atomic: the calls stand
-- in `redis_calls.lua`, and each has the functions of this file that it uses. A function uses only those above it.
--
-- KEYS[1]  the prefix of every key, which is their hash tag: {courier}
-- ARGV     the id of the gateway that calls, the name of the call, its arguments
-- returns  the result, the streams that have something to deliver, and what happened to messages (for the event log)
--
--   streams              set of names                     gateways           sorted set: gateway -> dead after
--   stream:<name>        policy, paused, draining, last   held:<gateway>     hash: lease -> group and id
--   groups:<name>        hash: group -> number            joined:<gateway>   set of groups
--   recent:<name>        sorted set of ids                patterns:<gateway> hash: subscriber -> pattern and group
--   payloads:<name>      hash: id -> envelope             due                sorted set: group -> next lease or delay
--   refs:<name>          hash: id -> groups that have it  log, entry         what changed, for every gateway
--   shown                hash: stream -> last envelope    number             grows with every use, never behind the time
--
--   <group>:about  stream, name     <group>:items  hash: id -> the message's state, dead ones among them
--   <group>:ready, leased, delayed, dead: sorted sets of ids; each message is in one of them, or waits in a lane
--   <group>:firsts  hash: partition -> the id that goes first    <group>:lane:<partition>  list of ids behind it
--
-- Times are microseconds of this server's clock.

local base, gateway = KEYS[1], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local LOG_ENTRIES, MOST_AT_ONCE, MOST_GROUPS = 10000, 500, 64
local touched, is_touched, shown, events, policies = {}, {}, {}, {}, {}

local function key(first, second, third)
  if third then return base .. ':' .. first .. ':' .. second .. ':' .. third end
  if second then return base .. ':' .. first .. ':' .. second end
  return base .. ':' .. first
end

-- A number that no other call gets. It follows the time, so that it is the order of messages, too.
local function next_number()
  local number = redis.call('INCR', key('number'))
  if number < now then
    number = now
    redis.call('SET', key('number'), number)
  end
  return number
end

local function touch(stream)
  if not is_touched[stream] then
    is_touched[stream] = true
    touched[#touched + 1] = stream
  end
end

-- The log's ids are consecutive, so that a reader sees whether it has missed something.
local function publish()
  for _, stream in ipairs(touched) do
    local entry = string.format('%.0f-1', redis.call('INCR', key('entry')))
    redis.call('XADD', key('log'), 'MAXLEN', '~', LOG_ENTRIES, entry,
      'stream', stream, 'gateway', gateway, 'shown', shown[stream] or '')
  end
end

local function observe(event, group, id, reason)
  events[#events + 1] = {event, group.stream, group.name, id, reason or ''}
end

local function count(group, name, by)
  redis.call('HINCRBY', key(group.number, 'counts'), name, by or 1)
end

local function policy_of(stream)
  if not policies[stream] then
    policies[stream] = cjson.decode(redis.call('HGET', key('stream', stream), 'policy'))
  end
  return policies[stream]
end

local function find_group(number)
  local about = redis.call('HMGET', key(number, 'about'), 'stream', 'name')
  return about[1] and {number = number, stream = about[1], name = about[2]}
end

-- Of a stream, the oldest first.
local function groups_of(stream)
  local found, flat = {}, redis.call('HGETALL', key('groups', stream))
  for i = 1, #flat, 2 do
    found[#found + 1] = {number = flat[i + 1], stream = stream, name = flat[i]}
  end
  table.sort(found, function(one, other) return tonumber(one.number) < tonumber(other.number) end)
  return found
end

local function load(group, id)
  local packed = redis.call('HGET', key(group.number, 'items'), id)
  return packed and cmsgpack.unpack(packed)
end

local function save(group, id, item)
  redis.call('HSET', key(group.number, 'items'), id, cmsgpack.pack(item))
end

local function size(group, what)
  return redis.call('ZCARD', key(group.number, what))
end

local function depth(group)
  return redis.call('HLEN', key(group.number, 'items')) - size(group, 'dead')
end

local function mark_due(group, at)
  redis.call('ZADD', key('due'), 'LT', at, group.number)
end

-- --- order -----------------------------------------------------------------------------------------------------------

local function make_ready(group, id, item)
  redis.call('ZADD', key(group.number, 'ready'), item.order, id)
  touch(group.stream)
end

-- To the tail; behind the first one of its partition.
local function queue(group, id, item)
  item.state = 'queued'
  item.order = next_number() - item.priority * policy_of(group.stream).ageing
  if item.partition and not item.first then
    if redis.call('HSETNX', key(group.number, 'firsts'), item.partition, id) == 0 then
      redis.call('RPUSH', key(group.number, 'lane', item.partition), id)
      save(group, id, item)
      return
    end
    item.first = true
  end
  save(group, id, item)
  make_ready(group, id, item)
end

-- The next one of the partition goes first.
local function leave_lane(group, item)
  if not item.first then return end
  local id = redis.call('LPOP', key(group.number, 'lane', item.partition))
  if not id then
    redis.call('HDEL', key(group.number, 'firsts'), item.partition)
    return
  end
  local follower = load(group, id)
  follower.first = true
  save(group, id, follower)
  redis.call('HSET', key(group.number, 'firsts'), item.partition, id)
  make_ready(group, id, follower)
end

-- The message leaves the group, and the store with the last group that has it.
local function forget(group, id)
  redis.call('HDEL', key(group.number, 'items'), id)
  local refs = redis.call('HGET', key('refs', group.stream), id)
  if refs and tonumber(refs) > 1 then
    redis.call('HINCRBY', key('refs', group.stream), id, -1)
  else
    redis.call('HDEL', key('refs', group.stream), id)
    redis.call('HDEL', key('payloads', group.stream), id)
  end
end

local function bury(group, id, item, reason)
  leave_lane(group, item)
  item.state, item.reason, item.died, item.first, item.lease = 'dead', reason, now, nil, nil
  save(group, id, item)
  redis.call('ZADD', key(group.number, 'dead'), next_number(), id)
  count(group, 'died')
  observe('dead', group, id, reason)
  if size(group, 'dead') > policy_of(group.stream).dead then
    local oldest = redis.call('ZPOPMIN', key(group.number, 'dead'))[1]
    forget(group, oldest)
    count(group, 'dropped')
    observe('drop', group, oldest, 'too many dead messages')
  end
end

local function make_room(group)
  local id = redis.call('ZPOPMIN', key(group.number, 'ready'))[1]
  local item = load(group, id)
  if policy_of(group.stream).overflow == 'dropOldest' then
    leave_lane(group, item)
    forget(group, id)
    count(group, 'dropped')
    observe('drop', group, id, 'the stream is full')
  else
    bury(group, id, item, 'the stream was full')
  end
end

-- --- leases ----------------------------------------------------------------------------------------------------------

-- The message, if this lease is the one that holds it.
local function held(group, id, lease)
  local item = group and load(group, id)
  return item and item.lease == lease and item
end

-- Begins with a write that Redis allows when its memory is full: messages can always be settled.
local function release(group, id, item)
  redis.call('ZREM', key(group.number, 'leased'), id)
  redis.call('HDEL', key('held', item.lease:match('^[^-]+')), item.lease)
  item.lease = nil
end

local function give_back(group, id, item, counted, delay, reason, event)
  release(group, id, item)
  if counted then item.failures = item.failures + 1 end
  observe(event, group, id, reason)
  if counted and item.failures >= policy_of(group.stream).deliveries then
    bury(group, id, item, reason ~= '' and reason or 'failed too often')
  elseif delay > 0 then
    item.state = 'delayed'
    save(group, id, item)
    redis.call('ZADD', key(group.number, 'delayed'), now + delay, id)
    mark_due(group, now + delay)
  else
    queue(group, id, item)
  end
end

-- A message that was claimed and never delivered has its place again.
local function put_back(group, id, item)
  release(group, id, item)
  count(group, 'delivered', -1)
  if item.attempts > 1 then count(group, 'redelivered', -1) end
  item.attempts = item.attempts - 1
  item.state = 'queued'
  save(group, id, item)
  make_ready(group, id, item)
end

-- Leases as triples of group, id and lease: `lost` counts as a failure, otherwise nothing was delivered.
local function return_leases(triples, lost)
  for _, one in ipairs(triples) do
    local group = find_group(one[1])
    local item = held(group, one[2], one[3])
    if item and lost then
      give_back(group, one[2], item, true, 0, lost, 'lost')
    elseif item then
      put_back(group, one[2], item)
    end
  end
end

-- Group, id and lease of each field of a hash `held`.
local function parse_held(flat)
  local triples = {}
  for i = 1, #flat, 2 do
    local number, id = flat[i + 1]:match('^(%d+) (.*)$')
    triples[#triples + 1] = {number, id, flat[i]}
  end
  return triples
end

local function leases_of(other)
  return parse_held(redis.call('HSCAN', key('held', other), 0, 'COUNT', MOST_AT_ONCE)[2])
end

local function expire(group)
  local leased, delayed = key(group.number, 'leased'), key(group.number, 'delayed')
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, MOST_AT_ONCE)) do
    count(group, 'expired')
    give_back(group, id, load(group, id), true, 0, 'the lease expired', 'timeout')
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, MOST_AT_ONCE)) do
    redis.call('ZREM', delayed, id)
    queue(group, id, load(group, id))
  end
  redis.call('ZREM', key('due'), group.number)
  for _, place in ipairs({leased, delayed}) do
    local first = redis.call('ZRANGE', place, 0, 0, 'WITHSCORES')
    if first[2] then mark_due(group, first[2]) end
  end
end

-- --- streams, groups, gateways ---------------------------------------------------------------------------------------

local function parts_of(name)
  local parts = {}
  for part in name:gmatch('[^/]+') do parts[#parts + 1] = part end
  return parts
end

-- `*` stands for one part, at the end for one or more.
local function fits(pattern, stream)
  local given, name = parts_of(pattern), parts_of(stream)
  if #name < #given or (#name > #given and given[#given] ~= '*') then return false end
  for i, part in ipairs(given) do
    if part ~= '*' and part ~= name[i] then return false end
  end
  return true
end

-- The groups of all patterns that the stream fits, of every gateway.
local function groups_by_pattern(stream)
  local names, is_named = {}, {}
  for _, other in ipairs(redis.call('ZRANGE', key('gateways'), 0, -1)) do
    for _, value in ipairs(redis.call('HVALS', key('patterns', other))) do
      local pattern, name = value:match('^(%S+) (.*)$')
      if not is_named[name] and fits(pattern, stream) then
        is_named[name] = true
        names[#names + 1] = name
      end
    end
  end
  return names, is_named
end

local function add_group(stream, name)
  local group = {number = string.format('%.0f', redis.call('INCR', key('group'))), stream = stream, name = name}
  redis.call('HSET', key('groups', stream), name, group.number)
  redis.call('HSET', key(group.number, 'about'), 'stream', stream, 'name', name)
  touch(stream)
  return group
end

-- Returns false where there are too many streams.
local function begin_stream(stream, policy, most)
  if redis.call('HGET', key('stream', stream), 'policy') == policy then return true end
  local is_new = redis.call('SISMEMBER', key('streams'), stream) == 0
  if is_new and redis.call('SCARD', key('streams')) >= tonumber(most) then return false end
  redis.call('HSET', key('stream', stream), 'policy', policy)
  if is_new then
    redis.call('SADD', key('streams'), stream)
    local names = groups_by_pattern(stream)
    for _, name in ipairs(#names > 0 and names or {'default'}) do add_group(stream, name) end
  end
  return true
end

local function is_full_of_groups(stream, name)
  local groups = key('groups', stream)
  return redis.call('HEXISTS', groups, name) == 0 and redis.call('HLEN', groups) >= MOST_GROUPS
end

-- The group of this name. The first one takes over what is queued where nobody takes part.
local function find_or_add_group(stream, name)
  local groups = redis.call('HGETALL', key('groups', stream))
  local numbers = {}
  for i = 1, #groups, 2 do numbers[groups[i]] = groups[i + 1] end
  if numbers[name] then return find_group(numbers[name]) end
  local number = numbers['default']
  if number then
    local _, is_named = groups_by_pattern(stream)
    local delivered = tonumber(redis.call('HGET', key(number, 'counts'), 'delivered') or 0)
    if delivered == 0 and not is_named['default'] and redis.call('SCARD', key(number, 'members')) == 0 then
      redis.call('HDEL', key('groups', stream), 'default')
      redis.call('HSET', key('groups', stream), name, number)
      redis.call('HSET', key(number, 'about'), 'name', name)
      return {number = number, stream = stream, name = name}
    end
  end
  return add_group(stream, name)
end

local function join(stream, name, subscriber)
  local group = find_or_add_group(stream, name)
  redis.call('SADD', key(group.number, 'members'), subscriber)
  redis.call('SADD', key('joined', gateway), group.number)
  return {stream, group.number}
end

-- Another gateway does not answer any more: what its subscribers held is for others. Returns whether that is all.
local function bury_gateway(other)
  local triples = leases_of(other)
  return_leases(triples, 'its gateway went away')
  for _, one in ipairs(triples) do redis.call('HDEL', key('held', other), one[3]) end
  if redis.call('HLEN', key('held', other)) > 0 then return false end
  for _, number in ipairs(redis.call('SMEMBERS', key('joined', other))) do
    for _, member in ipairs(redis.call('SMEMBERS', key(number, 'members'))) do
      if member:match('^[^-]+') == other then redis.call('SREM', key(number, 'members'), member) end
    end
  end
  redis.call('DEL', key('joined', other), key('patterns', other))
  redis.call('ZREM', key('gateways'), other)
  return true
end

-- The dead messages of these ids, or all: pairs of group and id. The second value is an id that is not among them.
local function chosen_dead(stream, ids)
  local chosen, found = {}, {}
  for _, group in ipairs(groups_of(stream)) do
    local dead = key(group.number, 'dead')
    for _, id in ipairs(ids or redis.call('ZRANGE', dead, 0, -1)) do
      if redis.call('ZSCORE', dead, id) then
        chosen[#chosen + 1] = {group, id}
        found[id] = true
      end
    end
  end
  for _, id in ipairs(ids or {}) do
    if not found[id] then return nil, id end
  end
  return chosen
end
