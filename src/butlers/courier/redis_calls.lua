-- The calls of a gateway, each a script of its own with what it uses of `redis_model.lua`. Arguments are text.

local calls = {}

function calls.enqueue(stream, policy, most, id, payload, partition, priority, ts, is_shown)
  if not begin_stream(stream, policy, most) then return {'most'} end
  local groups = groups_of(stream)
  if redis.call('ZSCORE', key('recent', stream), id) or redis.call('HEXISTS', key('payloads', stream), id) == 1 then
    for _, group in ipairs(groups) do count(group, 'duplicates') end
    return {'duplicate'}
  end
  if redis.call('HGET', key('stream', stream), 'draining') then return {'closed'} end
  local rules = policy_of(stream)
  for _, group in ipairs(groups) do
    group.is_full = depth(group) >= rules.depth
    if group.is_full and (rules.overflow == 'reject' or size(group, 'ready') == 0) then
      count(group, 'rejected')
      return {'full', depth(group)}
    end
  end
  local number = next_number()
  redis.call('ZADD', key('recent', stream), number, id)
  local surplus = redis.call('ZCARD', key('recent', stream)) - rules.recent
  if surplus > 0 then redis.call('ZPOPMIN', key('recent', stream), surplus) end
  redis.call('HSET', key('payloads', stream), id, payload)
  if #groups > 1 then redis.call('HSET', key('refs', stream), id, #groups) end
  redis.call('HSET', key('stream', stream), 'last', ts)
  for _, group in ipairs(groups) do
    if group.is_full then make_room(group) end
    count(group, 'accepted')
    queue(group, id, {attempts = 0, failures = 0, priority = tonumber(priority), accepted = now,
      partition = partition ~= '' and partition or nil})
  end
  touch(stream)
  if is_shown == '1' then
    shown[stream] = string.format('%.0f', number)
    redis.call('HSET', key('shown'), stream, shown[stream] .. ' ' .. payload)
  end
  return {'accepted', number}
end

-- Takes up to `most` messages of a group. Returns how many are ready besides, the length of a lease, and the messages.
function calls.claim(number, most)
  local group = find_group(number)
  if not group or redis.call('HGET', key('stream', group.stream), 'paused') then return {0, 0, {}} end
  local popped = redis.call('ZPOPMIN', key(number, 'ready'), most)
  local lease_length = policy_of(group.stream).lease
  local claimed, again = {}, 0
  for i = 1, #popped, 2 do
    local id = popped[i]
    local item = load(group, id)
    item.state, item.attempts = 'leased', item.attempts + 1
    item.lease = gateway .. '-' .. string.format('%.0f', next_number())
    save(group, id, item)
    redis.call('ZADD', key(number, 'leased'), now + lease_length, id)
    redis.call('HSET', key('held', gateway), item.lease, number .. ' ' .. id)
    if item.attempts > 1 then again = again + 1 end
    local payload = redis.call('HGET', key('payloads', group.stream), id)
    claimed[#claimed + 1] = {id, payload, item.lease, item.attempts, now - item.accepted}
  end
  if #claimed > 0 then
    count(group, 'delivered', #claimed)
    if again > 0 then count(group, 'redelivered', again) end
    mark_due(group, now + lease_length)
  end
  return {size(group, 'ready'), lease_length, claimed}
end

function calls.ack(number, id, lease)
  local group = find_group(number)
  local item = held(group, id, lease)
  if not item then return 'conflict' end
  release(group, id, item)
  leave_lane(group, item)
  forget(group, id)
  count(group, 'acked')
  return 'ok'
end

function calls.nack(number, id, lease, meaning, delay, reason)
  local group = find_group(number)
  local item = held(group, id, lease)
  if not item then return 'conflict' end
  if meaning == 'poison' then
    release(group, id, item)
    bury(group, id, item, reason ~= '' and reason or 'a subscriber called it poison')
  else
    give_back(group, id, item, meaning == 'failed', tonumber(delay), reason, 'nack')
  end
  count(group, 'nacked')
  return 'ok'
end

-- Returns the new length of the lease.
function calls.extend(number, id, lease, length)
  local group = find_group(number)
  if not held(group, id, lease) then return 'conflict' end
  local given = length ~= '' and tonumber(length) or policy_of(group.stream).lease
  redis.call('ZADD', key(number, 'leased'), now + given, id)
  mark_due(group, now + given)
  return given
end

-- `policy` is empty for a pattern. Returns pairs of stream and group.
function calls.subscribe(subscriber, pattern, name, policy, most)
  if policy ~= '' then
    if not begin_stream(pattern, policy, most) then return 'most' end
    if is_full_of_groups(pattern, name) then return 'groups' end
    return {join(pattern, name, subscriber)}
  end
  local streams, joined = {}, {}
  for _, stream in ipairs(redis.call('SMEMBERS', key('streams'))) do
    if fits(pattern, stream) then
      if is_full_of_groups(stream, name) then return 'groups' end
      streams[#streams + 1] = stream
    end
  end
  redis.call('HSET', key('patterns', gateway), subscriber, pattern .. ' ' .. name)
  for i, stream in ipairs(streams) do joined[i] = join(stream, name, subscriber) end
  return joined
end

-- A subscriber by pattern takes part in a stream that began later.
function calls.join(stream, name, subscriber)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return {} end
  return join(stream, name, subscriber)
end

function calls.unsubscribe(subscriber, leases, numbers)
  return_leases(cjson.decode(leases), 'its subscriber went away')
  redis.call('HDEL', key('patterns', gateway), subscriber)
  -- Without numbers, wherever this gateway takes part: its subscribe got no answer.
  for _, number in ipairs(numbers ~= '' and cjson.decode(numbers) or redis.call('SMEMBERS', key('joined', gateway))) do
    redis.call('SREM', key(number, 'members'), subscriber)
  end
end

function calls.put_back(leases)
  return_leases(cjson.decode(leases), nil)
end

-- What this gateway holds according to the store: group, id, lease.
function calls.held()
  return parse_held(redis.call('HGETALL', key('held', gateway)))
end

-- Once a second, and when something is due: the gateway is alive, others may not be, leases and delays end.
-- Returns since when there is data, the last entry of the log, the time until the next call is due (-1: none), and
-- which of the groups have something ready, and whether the others still counted this gateway among the living.
function calls.tend(alive, waiting)
  local birth = redis.call('GET', key('birth'))
  if not birth then
    birth = string.format('%.0f', next_number())
    redis.call('SET', key('birth'), birth)
  end
  local is_known = redis.call('ZADD', key('gateways'), now + tonumber(alive), gateway) == 0
  local is_more = false
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', key('gateways'), '-inf', now, 'LIMIT', 0, 1)) do
    is_more = not bury_gateway(other)
  end
  for _, number in ipairs(redis.call('ZRANGEBYSCORE', key('due'), '-inf', now, 'LIMIT', 0, 20)) do
    local group = find_group(number)
    if group then expire(group) else redis.call('ZREM', key('due'), number) end
  end
  local first = redis.call('ZRANGE', key('due'), 0, 0, 'WITHSCORES')
  local pause = first[2] and math.max(0, first[2] - now) or -1
  local ready = {}
  for _, number in ipairs(cjson.decode(waiting)) do
    if redis.call('ZCARD', key(number, 'ready')) > 0 then ready[#ready + 1] = number end
  end
  return {birth, tonumber(redis.call('GET', key('entry')) or 0), is_more and 0 or pause, ready, is_known and 1 or 0}
end

-- The gateway ends in order: its subscribers are gone, and what is left was never delivered. Returns what remains.
function calls.depart()
  return_leases(leases_of(gateway), nil)
  local left = redis.call('HLEN', key('held', gateway))
  if left == 0 then bury_gateway(gateway) end
  return left
end

function calls.streams()
  return redis.call('SMEMBERS', key('streams'))
end

function calls.shown(streams)
  local names = cjson.decode(streams)
  return #names > 0 and redis.call('HMGET', key('shown'), unpack(names)) or {}
end

-- Of the stream: last, paused, draining; of each group its name, its counts and how many messages are where.
function calls.stats(stream)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return false end
  local groups = {}
  for i, group in ipairs(groups_of(stream)) do
    local lanes = 0
    for _, partition in ipairs(redis.call('HKEYS', key(group.number, 'firsts'))) do
      lanes = lanes + redis.call('LLEN', key(group.number, 'lane', partition))
    end
    groups[i] = {group.name, redis.call('HGETALL', key(group.number, 'counts')),
      redis.call('HLEN', key(group.number, 'items')), size(group, 'ready') + lanes, size(group, 'delayed'),
      size(group, 'leased'), size(group, 'dead'), redis.call('SCARD', key(group.number, 'members'))}
  end
  local about = redis.call('HMGET', key('stream', stream), 'last', 'paused', 'draining')
  return {about[1] or '', about[2] and 1 or 0, about[3] and 1 or 0, groups}
end

function calls.dead(stream)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return false end
  local found = {}
  for _, pair in ipairs(chosen_dead(stream, nil)) do
    local group, id = pair[1], pair[2]
    local item = load(group, id)
    found[#found + 1] = {group.name, id, redis.call('HGET', key('payloads', stream), id), item.partition or false,
      item.priority, item.reason, item.attempts, item.failures, now - item.died}
  end
  return found
end

-- `what`: replay or discard. `ids` is a list as JSON, or empty for all. Returns how many, or the id that is not dead.
function calls.settle_dead(stream, what, ids)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return false end
  local chosen, unknown = chosen_dead(stream, ids ~= '' and cjson.decode(ids) or nil)
  if not chosen then return unknown end
  for _, pair in ipairs(chosen) do
    local group, id = pair[1], pair[2]
    redis.call('ZREM', key(group.number, 'dead'), id)
    if what == 'replay' then
      local item = load(group, id)
      count(group, 'replayed')
      observe('replay', group, id)
      queue(group, id, {attempts = 0, failures = 0, priority = item.priority, accepted = now,
        partition = item.partition})
    else
      forget(group, id)
      count(group, 'discarded')
      observe('discard', group, id)
    end
  end
  return #chosen
end

-- Returns how many messages went with the group, or why it stays.
function calls.remove_group(stream, name)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return false end
  local number = redis.call('HGET', key('groups', stream), name)
  if not number then return 'unknown' end
  if redis.call('SCARD', key(number, 'members')) > 0 then return 'members' end
  if redis.call('HLEN', key('groups', stream)) == 1 then return 'only' end
  local group = find_group(number)
  local ids = redis.call('HKEYS', key(number, 'items'))
  for _, id in ipairs(ids) do forget(group, id) end
  for _, partition in ipairs(redis.call('HKEYS', key(number, 'firsts'))) do
    redis.call('DEL', key(number, 'lane', partition))
  end
  for _, what in ipairs({'about', 'items', 'ready', 'leased', 'delayed', 'dead', 'firsts', 'counts', 'members'}) do
    redis.call('DEL', key(number, what))
  end
  redis.call('HDEL', key('groups', stream), name)
  redis.call('ZREM', key('due'), number)
  observe('group.remove', group, '')
  return #ids
end

function calls.steer(stream, what)
  if redis.call('SISMEMBER', key('streams'), stream) == 0 then return false end
  if what == 'resume' then
    redis.call('HDEL', key('stream', stream), 'paused', 'draining')
    touch(stream)
  else
    redis.call('HSET', key('stream', stream), what == 'pause' and 'paused' or 'draining', 1)
  end
  return 1
end

local result = calls[ARGV[2]](unpack(ARGV, 3))
publish()
if result == nil then result = false end
return {result, touched, events}
