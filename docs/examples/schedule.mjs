// Write entries of RedBeat with node-redis.
//
//   node schedule.mjs save NAME TASK SECONDS
//   node schedule.mjs remove NAME
//   node schedule.mjs problem NAME
import process from 'node:process';
import { createClient } from 'redis';

const prefix = process.env.REDBEAT_KEY_PREFIX ?? 'redbeat:';
const client = createClient({ url: process.env.REDIS_URL ?? 'redis://localhost:6379/1' });

async function save(name, entry) {
  const key = prefix + name;
  await client
    .multi()
    .hSet(key, 'definition', JSON.stringify({ ...entry, name }))
    .zAdd(`${prefix}:schedule`, { score: 0, value: key })
    .publish(`${prefix}:wakeup`, 'due')
    .exec();
}

async function remove(name) {
  const key = prefix + name;
  await client.multi().zRem(`${prefix}:schedule`, key).del(key).exec();
}

// Why the entry was set aside, or nothing.
async function problem(name) {
  const note = await client.hGet(`.${prefix}:quarantine`, prefix + name);
  return note ? JSON.parse(note).reason : '';
}

const [verb, name, task, seconds] = process.argv.slice(2);
await client.connect();
try {
  if (verb === 'save') {
    await save(name, { task, schedule: { __type__: 'interval', every: Number(seconds) } });
  } else if (verb === 'remove') {
    await remove(name);
  } else {
    console.log(await problem(name));
  }
} finally {
  await client.close();
}
