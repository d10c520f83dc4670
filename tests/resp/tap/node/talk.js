// Speaks with a server as programs do, and prints what it got as one line of JSON:
//     node talk.js HOST PORT PROTOCOL NAME
"use strict";

const { createHash } = require("node:crypto");
const Redis = require("ioredis");

const host = process.argv[2];
const [port, protocol] = process.argv.slice(3, 5).map(Number);
const name = process.argv[5];
const options = { host, port, protocol };

async function main() {
  const got = {};
  const client = new Redis({ ...options, connectionName: "first" });
  const waiting = new Redis(options);
  const listener = new Redis(options);

  // Many at once, on one connection: ioredis pipelines by itself.
  got.echoes = await Promise.all(
    Array.from({ length: 300 }, (_, n) => client.echo(`echo:${n}`)),
  );

  const pipeline = client.pipeline();
  for (let n = 0; n < 300; n++) pipeline.echo(`piped:${n}`);
  pipeline.lpush(`${name}:no`, "x").get(`${name}:no`);
  got.piped = (await pipeline.exec()).map(([error, value]) => (error ? error.message : value));

  got.transaction = await client
    .multi()
    .set(`${name}:t`, "1")
    .incr(`${name}:t`)
    .echo("in a transaction")
    .exec();

  // Pub/sub, confirmed before anything is published.
  const messages = [];
  const all = new Promise((resolve) => {
    const take = (...parts) => messages.push(parts.join(" ")) === 20 && resolve();
    listener.on("message", (channel, message) => take("message", channel, message));
    listener.on("pmessage", (pattern, channel, message) => take("pmessage", pattern, channel, message));
  });
  got.subscribed = await listener.subscribe(`${name}:a`, `${name}:b`);
  got.psubscribed = await listener.psubscribe(`${name}:p*`);
  for (let n = 0; n < 10; n++) {
    await client.publish(n % 2 ? `${name}:a` : `${name}:b`, `m${n}`);
    await client.publish(`${name}:p${n}`, `p${n}`);
  }
  await all;
  got.messages = messages.sort();
  got.unsubscribed = await listener.unsubscribe(`${name}:a`, `${name}:b`);
  got.punsubscribed = await listener.punsubscribe(`${name}:p*`);
  got.after = await listener.echo("after");

  // Pops that block until another connection pushes.
  const popped = waiting.blpop(`${name}:list`, 20);
  await client.rpush(`${name}:list`, "pushed");
  got.popped = await popped;
  got.timeout = await waiting.blpop(`${name}:empty`, 0.05);

  // A script: EVAL, then EVALSHA; and where the server has lost it NOSCRIPT, and EVAL again.
  const source = `return {KEYS[1], ARGV[1], '${name}'}`;
  client.defineCommand("mine", { numberOfKeys: 1, lua: source });
  got.scripts = [await client.mine("k", "1")];
  await client.script("FLUSH");
  got.scripts.push(await client.mine("k", "2"), await client.mine("k", "3"));
  got.sha = createHash("sha1").update(source).digest("hex");

  const value = Buffer.alloc(300_000, "v");
  await client.set(`${name}:large`, value);
  got.large = (await client.getBuffer(`${name}:large`)).equals(value);
  got.error = await client.call("NOSUCHCOMMAND").catch((error) => error.message);

  await Promise.all([client.quit(), waiting.quit(), listener.quit()]);
  console.log(JSON.stringify(got));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
