// An operator behind the fault layer, a process of its own.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect, inject, test } from 'vitest';
import envtest from 'kaji/envtest';
import { core, custom, eventually, greetings, namespace } from '../api.js';

const control = envtest.connect(inject('kaji'));
const program = fileURLToPath(new URL('../operator.cjs', import.meta.url));
const name = 'hello';

async function withOperator(cluster, test) {
  const env = { ...process.env, KUBECONFIG: cluster.faultsAccess.kubeconfigFile };
  const operator = spawn(process.execPath, [program], { env, stdio: ['ignore', 'inherit', 'inherit'] });
  const ended = once(operator, 'exit');
  try {
    await test();
  } finally {
    operator.kill();
    await ended;
  }
}

const greet = (cluster, text) =>
  custom(cluster.kubeconfig).createNamespacedCustomObject({
    ...greetings,
    body: { apiVersion: 'greetings.example.com/v1', kind: 'Greeting', metadata: { name }, spec: { text } },
  });

const said = async (cluster) => (await custom(cluster.kubeconfig).getNamespacedCustomObject({ ...greetings, name })).status?.said;
const text = async (cluster) => (await core(cluster.kubeconfig).readNamespacedConfigMap({ namespace, name })).data.text;

test('a greeting gets its config map, which goes with it', () =>
  control.withFork((cluster) =>
    withOperator(cluster, async () => {
      await greet(cluster, 'good morning');
      expect(await eventually(() => said(cluster))).toBe('good morning');
      expect(await text(cluster)).toBe('good morning');
      await custom(cluster.kubeconfig).deleteNamespacedCustomObject({ ...greetings, name });
      await eventually(async () => {
        const { items } = await core(cluster.kubeconfig).listNamespacedConfigMap({ namespace });
        return !items.some((map) => map.metadata.name === name);
      });
    }),
  ));

test('a write that fails is done again', () =>
  control.withFork(async (cluster) => {
    const at = { client: 'unnamed', verb: 'create', resource: 'configmaps' };
    await cluster.arm([{ kind: 'answer-lost', at: { ...at, nth: 1 } }, { kind: 'unavailable', at: { ...at, nth: 2 } }]);
    await withOperator(cluster, async () => {
      await greet(cluster, 'good night');
      await eventually(async () => (await cluster.faults()).fired.length === 2);
      expect(await eventually(() => said(cluster))).toBe('good night');
      expect(await text(cluster)).toBe('good night');
    });
  }));
