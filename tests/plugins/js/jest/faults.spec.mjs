import { expect, test } from '@jest/globals';
import envtest from 'kaji/envtest';
import { core, create, exists } from '../api.js';

const control = envtest.connect(JSON.parse(process.env.KAJI_CONTROL));

test('faults come about once', () =>
  control.withFork(async (cluster) => {
    const api = core(cluster.faultsAccess.kubeconfig);
    await exists(api, 'shared');
    const [{ client }] = (await cluster.faults()).requests;
    const at = { client, verb: 'create', resource: 'configmaps' };
    await cluster.arm([{ kind: 'too-many-requests', at: { ...at, nth: 1 } }, { kind: 'answer-lost', at: { ...at, nth: 2 } }]);
    await expect(create(api, 'refused')).rejects.toMatchObject({ code: 429 });
    await expect(create(api, 'lost')).rejects.toThrow();
    expect(await exists(api, 'lost')).toBe(true);
    expect(await exists(api, 'refused')).toBe(false);
    expect((await cluster.faults()).fired).toHaveLength(2);
  }));
