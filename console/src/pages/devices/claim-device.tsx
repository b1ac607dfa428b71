import { Button, Group, Modal, PasswordInput, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconHandGrab } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { ShowCall } from '../../ui/show-call';

type Device = Schemas['Device'];

const maxGroupLength = 64;

/** Adds a device to a group with the secret that it offers, which shows that it is at hand. */
export function ClaimButton({ device }: { device: Device }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button variant="default" leftSection={<IconHandGrab size={14} />} onClick={() => setOpen(true)}>
        <Trans>Claim</Trans>
      </Button>
      {isOpen && <Claim device={device} onClose={() => setOpen(false)} />}
    </>
  );
}

function Claim({ device, onClose }: { device: Device; onClose: () => void }) {
  const { t } = useLingui();
  const [secret, setSecret] = useState('');
  const [group, setGroup] = useState('');
  const path = `${objectPath('/api/v1/devices', device.id)}/claim`;
  const body = { secret, group: group.trim() };
  const claim = useChange(() => send<Device>('POST', path, { body }), [['devices'], ['/api/v1/devices']]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    claim.mutate(undefined, {
      onSuccess: () => {
        notifications.show({ message: t`${device.id} belongs to the group ${body.group} now.` });
        onClose();
      },
    });
  };
  return (
    <Modal opened onClose={onClose} title={<Trans>Claim {device.name || device.id}</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <Text size="sm" c="dimmed">
            <Trans>
              The device offers a secret for a limited time, on its display or label for example. With it, the device is
              added to your group.
            </Trans>
          </Text>
          <PasswordInput
            label={t`Secret`}
            description={t`Empty if the device offers none.`}
            autoComplete="off"
            data-autofocus
            value={secret}
            onChange={(event) => setSecret(event.currentTarget.value)}
          />
          <TextInput
            label={t`Group`}
            required
            maxLength={maxGroupLength}
            value={group}
            onChange={(event) => setGroup(event.currentTarget.value)}
          />
          {claim.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {claim.error.message}
            </Text>
          )}
          <Group justify="space-between">
            <ShowCall method="POST" path={path} body={{ ...body, secret: secret && 'SECRET' }} />
            <Button type="submit" loading={claim.isPending} disabled={body.group === ''}>
              <Trans>Claim</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
