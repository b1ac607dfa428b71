import { Alert, Button, Group, Loader, Modal, Select, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconKey } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { useMqttPort } from '../../api/mqtt-port';
import { objectPath, send, writable, type ConfigurationObject } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { CopyText } from '../../ui/copy';
import { ShowCall } from '../../ui/show-call';
import { exampleCommand } from './add-device';
import { keptCredentials, lostCredentials, newCredential, type GeneratedKind } from './credentials';

type Device = Schemas['Device'];

const path = '/api/v1/devices';

/** Replaces the credentials of a device by a new one, for a device whose secret is lost or known to others. */
export function CredentialsButton({ device }: { device: Device }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button variant="default" leftSection={<IconKey size={14} />} onClick={() => setOpen(true)}>
        <Trans>New credentials</Trans>
      </Button>
      {isOpen && <NewCredentials device={device} onClose={() => setOpen(false)} />}
    </>
  );
}

function NewCredentials({ device, onClose }: { device: Device; onClose: () => void }) {
  const { t } = useLingui();
  const { id, credentials } = device;
  const generated = credentials.map(({ type }) => type).find((type) => type !== 'certificate' && type !== 'jwt');
  const [kind, setKind] = useState<GeneratedKind>(generated ?? 'token');
  const scope = useSchema('NewDevice');
  const replacement = [newCredential(kind, credentials), ...keptCredentials(credentials)];
  const issue = useChange(async () => {
    const known = Object.keys(scope?.root.properties ?? {});
    const current = await send<ConfigurationObject>('GET', objectPath(path, id));
    return send<Device>('PUT', objectPath(path, id), {
      body: { ...writable(current, known), credentials: replacement },
      headers: { 'if-match': `"${current.version}"` },
    });
  }, [['devices'], [path]]);
  const lost = lostCredentials(credentials);
  if (issue.data) return <Issued device={issue.data} onClose={onClose} />;
  return (
    <Modal opened onClose={onClose} title={<Trans>New credentials for {device.name || id}</Trans>}>
      <Stack gap="sm">
        <Text size="sm">
          <Trans>
            The node generates a new credential. The present ones are no longer accepted, and the connection of the
            device ends.
          </Trans>
        </Text>
        {lost > 0 && (
          <Alert color="yellow" variant="light">
            <Trans>The key of the device for JWTs is removed, too. Add it again over the API.</Trans>
          </Alert>
        )}
        <Select
          label={t`Kind`}
          allowDeselect={false}
          value={kind}
          onChange={(next) => setKind(next as GeneratedKind)}
          data={[
            { value: 'token', label: t`access token` },
            { value: 'password', label: t`user name and password` },
            { value: 'secure', label: t`secure id and key (JetLinks)` },
          ]}
        />
        {issue.error && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {issue.error.message}
          </Text>
        )}
        <Group justify="space-between">
          <ShowCall
            method="PUT"
            path={objectPath(path, id)}
            body={{ product: device.product, credentials: replacement }}
          />
          <Button color="red" loading={issue.isPending} disabled={!scope} onClick={() => issue.mutate(undefined)}>
            <Trans>Replace the credentials</Trans>
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}

function Issued({ device, onClose }: { device: Device; onClose: () => void }) {
  const port = useMqttPort();
  const credential = device.issued?.[0];
  return (
    <Modal
      opened
      onClose={onClose}
      size="lg"
      closeOnClickOutside={false}
      title={<Trans>New credentials for {device.name || device.id}</Trans>}
    >
      <Stack gap="sm">
        <Text size="sm">
          <Trans>The credential is shown only now. This command sends a value as the device:</Trans>
        </Text>
        {credential &&
          (port === undefined ? <Loader size="sm" /> : <CopyText text={exampleCommand(credential, port)} />)}
        <Group justify="flex-end">
          <Button onClick={onClose}>
            <Trans>Done</Trans>
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
