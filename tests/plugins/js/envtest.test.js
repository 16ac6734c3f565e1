// The helper for Node.js with the project's client, under node:test: one set-up, a fork for each test.
import assert from 'node:assert';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import envtest from 'kaji/envtest';
import { core, create, exists, setUp } from './api.js';

let control;

before(async () => {
  control = await envtest.start({ controllers: ['namespace-controller'] });
  await setUp(control.base);
});
after(() => control?.stop());

for (let number = 0; number < 20; number += 1) {
  test(`a cluster of its own, ${number}`, () =>
    control.withFork(async (cluster) => {
      const api = core(cluster.kubeconfig);
      assert.ok(await exists(api, 'shared'));
      assert.ok(!(await exists(api, 'own')));
      await create(api, 'own');
    }));
}

test('faults come about once', () =>
  control.withFork(async (cluster) => {
    const api = core(cluster.faultsAccess.kubeconfig);
    await exists(api, 'shared');
    const [{ client }] = (await cluster.faults()).requests;
    const at = { client: 'any', verb: 'create', resource: 'configmaps' };
    await cluster.arm([{ kind: 'unavailable', at: { ...at, nth: 1 } }, { kind: 'answer-lost', at: { ...at, nth: 2 } }], client);
    await assert.rejects(create(api, 'refused'), (error) => error.code === 503);
    await assert.rejects(create(api, 'lost'));
    await create(api, 'made');
    assert.ok(await exists(api, 'lost'));
    assert.ok(!(await exists(api, 'refused')));
    assert.equal((await cluster.faults()).fired.length, 2);
  }));

test('time is moved', () =>
  control.withFork(async (cluster) => {
    assert.equal((await cluster.advance(3600)).aheadSeconds, 3600);
    const made = await create(core(cluster.kubeconfig), 'later');
    assert.ok(new Date(made.metadata.creationTimestamp).getTime() > Date.now() + 3_000_000);
  }));

test('what is refused says why', async () => {
  await assert.rejects(control.base.delete(), /the base ends with the control/);
  await assert.rejects(control.base.fork('No Name'), /is no name/);
});

test('another process has the same control', async () => {
  const same = envtest.connect(JSON.parse(JSON.stringify(control.announced)));
  const name = await same.withFork(async (cluster) => cluster.name);
  await same.stop();
  const { clusters } = await control.request('GET', 'clusters');
  assert.ok(!clusters.some((cluster) => cluster.name === name));
});

test('a program that is not there, ends, or is another one, is named', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'plugins-'));
  try {
    const other = join(folder, 'other');
    await writeFile(other, '#!/bin/sh\necho "Usage: other"\ncat >/dev/null\n');
    await chmod(other, 0o755);
    await assert.rejects(envtest.start({ binary: other }), /other is not kaji, or another version of it: Usage: other/);
    await assert.rejects(envtest.start({ binary: join(folder, 'none') }), /none cannot be started .*ENOENT/);
    await assert.rejects(envtest.start({ args: ['--no-such-flag'] }), /kaji envtest serve ended with [1-9]/);
  } finally {
    await rm(folder, { recursive: true });
  }
});
