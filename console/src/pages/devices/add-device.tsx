import { Button, Group, Loader, Modal, Select, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { api, ApiError, unwrap, useChange, type Schemas } from '../../api/client';
import { useMqttPort } from '../../api/mqtt-port';
import { CopyText } from '../../ui/copy';
import { ShowCall } from '../../ui/show-call';
import { useProducts } from '../products/products';

/** Adds a device, and shows its credential once, in a command that is ready to run. */
export function AddDevice({ onClose }: { onClose: () => void }) {
  const { t } = useLingui();
  const [id, setId] = useState('');
  const [name, setName] = useState('');
  const [product, setProduct] = useState<string | null>(null);
  const products = useProducts();
  const known = products.data?.data ?? [];
  const chosen = product ?? known[0]?.id ?? null;
  const body = { id, product: chosen ?? 'default', ...(name ? { name } : {}) };
  const add = useChange(async () => {
    if (chosen === null) {
      await unwrap(api.POST('/api/v1/products', { body: { id: 'default', name: t`Default product` } }));
      return unwrap(api.POST('/api/v1/devices', { body: { ...body, product: 'default' } }));
    }
    return unwrap(api.POST('/api/v1/devices', { body }));
  }, [['devices'], ['device-counts'], ['products']]);
  const field = add.error instanceof ApiError ? add.error.field : undefined;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate(undefined);
  };
  if (add.data) return <Added device={add.data} onClose={onClose} />;
  return (
    <Modal opened onClose={onClose} title={<Trans>Add a device</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label={t`Id`}
            description={t`Up to 64 characters without / + # and blanks.`}
            value={id}
            maxLength={64}
            required
            data-autofocus
            error={
              /[/+#\s]/.test(id) ? t`/ + # and blanks are not allowed` : field === 'id' ? add.error?.message : undefined
            }
            onChange={(event) => setId(event.currentTarget.value)}
          />
          <TextInput
            label={t`Name`}
            value={name}
            maxLength={256}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          {known.length > 0 ? (
            <Select
              label={t`Product`}
              value={chosen}
              onChange={setProduct}
              allowDeselect={false}
              searchable
              data={known.map((each) => each.id)}
            />
          ) : (
            <Text size="sm" c="dimmed">
              <Trans>There is no product yet; the product "default" is created with it.</Trans>
            </Text>
          )}
          {add.error && field !== 'id' && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {add.error.message}
            </Text>
          )}
          <Group justify="space-between">
            <ShowCall
              method="POST"
              path="/api/v1/devices"
              body={body}
              ctl={`devices add ${id || 'ID'} product=${body.product || 'default'}`}
            />
            <Button type="submit" loading={add.isPending} disabled={products.data === undefined}>
              <Trans>Add</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Added({ device, onClose }: { device: Schemas['Device']; onClose: () => void }) {
  const credential = device.issued?.[0];
  const port = useMqttPort();
  return (
    <Modal opened onClose={onClose} title={<Trans>{device.id} was added</Trans>} size="lg">
      <Stack gap="sm">
        {credential && (
          <>
            <Text size="sm">
              <Trans>The credential is shown only now. This command sends a value as the device:</Trans>
            </Text>
            {port === undefined ? <Loader size="sm" /> : <CopyText text={exampleCommand(credential, port)} />}
          </>
        )}
        <Group justify="flex-end">
          <Button component={Link} href={`/devices/${encodeURIComponent(device.id)}`} onClick={onClose}>
            <Trans>Open the device</Trans>
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}

/** A command that sends a value as the device. */
export function exampleCommand(credential: Schemas['IssuedCredential'], port: string): string {
  const user =
    credential.type === 'token'
      ? `-u ${credential.token}`
      : credential.type === 'password'
        ? `-u ${credential.username} -P ${credential.password}`
        : `-u ${credential.secure_id} -P ${credential.secure_key}`;
  return `mosquitto_pub -h ${location.hostname} -p ${port} ${user} -t v1/devices/me/telemetry -m '{"temperature": 21.5}'`;
}
