// The helper for Node.js with the project's client: one set-up, a fork for each test.
import assert from 'node:assert';
import { after, before, test } from 'node:test';
import * as k8s from '@kubernetes/client-node';
import envtest from './envtest.cjs';

const namespace = 'default';
let control;

function core(kubeconfig) {
  const config = new k8s.KubeConfig();
  config.loadFromString(kubeconfig);
  return config.makeApiClient(k8s.CoreV1Api);
}

const create = (api, name) => api.createNamespacedConfigMap({ namespace, body: { metadata: { name } } });
const exists = async (api, name) => {
  const list = await api.listNamespacedConfigMap({ namespace });
  return list.items.some((map) => map.metadata.name === name);
};

before(async () => {
  control = await envtest.start({ controllers: ['namespace-controller'] });
  await create(core(control.base.kubeconfig), 'shared');
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
