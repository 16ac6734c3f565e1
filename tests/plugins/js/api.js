// The project's client, for the suites of all three runners.
import { readFile } from 'node:fs/promises';
import * as k8s from '@kubernetes/client-node';

export const namespace = 'default';
export const greetings = { group: 'greetings.example.com', version: 'v1', plural: 'greetings', namespace };

function api(kubeconfig, kind) {
  const config = new k8s.KubeConfig();
  config.loadFromString(kubeconfig);
  return config.makeApiClient(kind);
}

export const core = (kubeconfig) => api(kubeconfig, k8s.CoreV1Api);
export const custom = (kubeconfig) => api(kubeconfig, k8s.CustomObjectsApi);

export const create = (client, name) => client.createNamespacedConfigMap({ namespace, body: { metadata: { name } } });

export const exists = async (client, name) => {
  const list = await client.listNamespacedConfigMap({ namespace });
  return list.items.some((map) => map.metadata.name === name);
};

/** What a look finds, as soon as it finds something. What is not there yet is looked for again. */
export async function eventually(look, seconds = 60) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    try {
      const found = await look();
      if (found) return found;
    } catch (error) {
      if (error.code !== 404) throw error;
    }
    if (Date.now() > deadline) throw new Error('it does not come about');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** What all tests of a suite have. */
export async function setUp(base) {
  await create(core(base.kubeconfig), 'shared');
  const extensions = api(base.kubeconfig, k8s.ApiextensionsV1Api);
  const text = await readFile(new URL('greetings.yaml', import.meta.url), 'utf8');
  const { metadata } = await extensions.createCustomResourceDefinition({ body: k8s.loadYaml(text) });
  await eventually(async () => {
    const { status } = await extensions.readCustomResourceDefinition({ name: metadata.name });
    return status?.conditions?.some(({ type, status: is }) => type === 'Established' && is === 'True');
  });
}
