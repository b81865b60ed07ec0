# Write entries of RedBeat with the gem redis.
#
#   ruby schedule.rb save NAME TASK SECONDS
#   ruby schedule.rb remove NAME
#   ruby schedule.rb problem NAME
require 'json'
require 'redis'

PREFIX = ENV.fetch('REDBEAT_KEY_PREFIX', 'redbeat:')
REDIS = Redis.new(url: ENV.fetch('REDIS_URL', 'redis://localhost:6379/1'))

def save(name, entry)
  REDIS.multi do |transaction|
    transaction.hset(PREFIX + name, 'definition', JSON.generate(entry.merge(name: name)))
    transaction.zadd("#{PREFIX}:schedule", 0, PREFIX + name)
    transaction.publish("#{PREFIX}:wakeup", 'due')
  end
end

def remove(name)
  REDIS.multi do |transaction|
    transaction.zrem("#{PREFIX}:schedule", PREFIX + name)
    transaction.del(PREFIX + name)
  end
end

# Why the entry was set aside, or nothing.
def problem(name)
  note = REDIS.hget(".#{PREFIX}:quarantine", PREFIX + name)
  note && JSON.parse(note)['reason']
end

verb, name, task, seconds = ARGV
case verb
when 'save' then save(name, task: task, schedule: { __type__: 'interval', every: seconds.to_f })
when 'remove' then remove(name)
else puts problem(name)
end
