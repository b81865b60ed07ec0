-- push(commands, key, definition) publishes the message of a change. Returns nil if it left, else
-- the answer to the change; nothing is written then.

-- Those that may be in a message, and the types of their keys. A queue may expire.
local KINDS = {
  LPUSH = 'list', RPUSH = 'list', ZADD = 'zset', SADD = 'set', HSET = 'hash', PUBLISH = 'any',
  EXPIRE = 'any', PEXPIRE = 'any'}

local run_id, broker_db, own_db = unpack(head.server or {})
local is_brokers_server

-- INFO is called at most once a turn.
local function broker_is_here()
  if is_brokers_server == nil then
    local info = run_id and redis.pcall('INFO', 'server')
    is_brokers_server = type(info) == 'string' and
      string.find(info, 'run_id:' .. run_id, 1, true) ~= nil
  end
  return is_brokers_server
end

local checked = {}

local function problem_of(name, key)
  local kind = KINDS[name]
  if not kind then
    return name .. ' does not publish a message'
  end
  if kind == 'any' or checked[key] == kind then
    return nil
  end
  local found = redis.pcall('TYPE', key)
  if found.ok == kind or found.ok == 'none' then
    checked[key] = kind
    return nil
  end
  return found.err or
    'WRONGTYPE the queue ' .. key .. ' must be a ' .. kind .. ', but is a ' .. found.ok
end

local first_message = #ARGV - (head.messages or 0)

local function run_commands(commands)
  for _, command in ipairs(commands) do
    local problem = problem_of(command[1], command[2])
    if problem then
      return problem
    end
    command[#command] = ARGV[first_message + command[#command]]
  end
  for i, command in ipairs(commands) do
    local reply = redis.pcall(unpack(command))
    -- If a later command fails, a part of the message is out: it counts as sent.
    if i == 1 and type(reply) == 'table' and reply.err then
      if is_denied(reply.err) then
        return reply.err
      end
      redis.call(unpack(command))  -- it fails again, and ends the script with its own error
    end
  end
  return nil
end

local function push(commands, key, definition)
  if not broker_is_here() then
    return 'elsewhere'
  end
  if commands[1][1] == 'PUBLISH' and definition then
    -- PUBLISH is no write: if memory is full, this one ends the script before the message leaves.
    redis.call('HSET', key, 'definition', definition)
  end
  local elsewhere = broker_db ~= own_db
  local denied = elsewhere and redis.pcall('SELECT', broker_db).err
  local problem = denied or run_commands(commands)
  if elsewhere and not denied then
    redis.call('SELECT', own_db)
  end
  return problem and 'refused: ' .. problem
end
