// The project's JavaScript client against a cluster: create, list, informer, patch, delete.
import assert from 'node:assert';
import * as k8s from '@kubernetes/client-node';

const namespace = 'default';
const name = 'from-js';
const labelSelector = 'by=js';
let passed = 0;
const check = (holds, what) => {
  assert.ok(holds, what);
  passed += 1;
};

const config = new k8s.KubeConfig();
config.loadFromFile(process.argv[2]);
const core = config.makeApiClient(k8s.CoreV1Api);

const changes = [];
let waiting;
const note = (kind) => (map) => {
  changes.push(`${kind} ${map.data?.k}`);
  waiting?.();
};
const list = () => core.listNamespacedConfigMap({ namespace, labelSelector });
const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, list, labelSelector);
informer.on('add', note('ADDED'));
informer.on('update', note('MODIFIED'));
informer.on('delete', note('DELETED'));
await informer.start();

async function change(wanted) {
  const timer = setTimeout(() => assert.fail(`never ${wanted}`), 30_000);
  while (!changes.includes(wanted)) {
    await new Promise((resolve) => {
      waiting = resolve;
    });
  }
  clearTimeout(timer);
  passed += 1;
}

const body = { metadata: { name, labels: { by: 'js' } }, data: { k: '1' } };
check((await core.createNamespacedConfigMap({ namespace, body })).data.k === '1', 'created');
await assert.rejects(core.createNamespacedConfigMap({ namespace, body }), (e) => e.code === 409);
passed += 1;
await change('ADDED 1');
check((await list()).items.length === 1, 'listed');
const patch = [{ op: 'replace', path: '/data/k', value: '2' }];
check((await core.patchNamespacedConfigMap({ name, namespace, body: patch })).data.k === '2', 'patched');
await change('MODIFIED 2');
await core.deleteNamespacedConfigMap({ name, namespace });
await change('DELETED 2');
await assert.rejects(core.readNamespacedConfigMap({ name, namespace }), (e) => e.code === 404);
passed += 1;
check((await config.makeApiClient(k8s.VersionApi).getCode()).major === '1', 'version');
await informer.stop();
console.log(`client-node: ${passed} passed`);
process.exit(0);
