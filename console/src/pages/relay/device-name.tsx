import { ActionIcon, TextInput } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { IconCheck, IconPencil, IconX } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, writable, type ConfigurationObject } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { deviceHref } from '../devices/device-columns';

const path = '/api/v1/devices';
const maxLength = 256;

/** The name of a device in a list, which can be changed there. */
export function DeviceName({ device }: { device: Schemas['Device'] }) {
  const { t } = useLingui();
  const [isEditing, setEditing] = useState(false);
  const shown = device.name || device.id;
  if (isEditing) return <NameForm device={device} onClose={() => setEditing(false)} />;
  return (
    <span className="row">
      <Link href={deviceHref(device)} className="link">
        {shown}
      </Link>
      <ActionIcon size="sm" aria-label={t`Rename ${shown}`} title={t`Rename`} onClick={() => setEditing(true)}>
        <IconPencil size={14} />
      </ActionIcon>
    </span>
  );
}

function NameForm({ device, onClose }: { device: Schemas['Device']; onClose: () => void }) {
  const { t } = useLingui();
  const [name, setName] = useState(device.name);
  const scope = useSchema('NewDevice');
  const rename = useChange(
    async (next: string) => {
      const known = Object.keys(scope?.root.properties ?? {});
      const current = await send<ConfigurationObject>('GET', objectPath(path, device.id));
      // Summaries of credentials are no credentials; without them the device keeps its own.
      const { credentials: _, ...body } = writable(current, known);
      return send('PUT', objectPath(path, device.id), {
        body: { ...body, name: next },
        headers: { 'if-match': `"${current.version}"` },
      });
    },
    [[path], ['devices']],
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    rename.mutate(name.trim(), { onSuccess: onClose });
  };
  return (
    <form
      className="row"
      onSubmit={submit}
      onKeyDown={(event) => {
        if (event.key === 'Escape') onClose();
      }}
    >
      <TextInput
        size="xs"
        aria-label={t`Name of ${device.id}`}
        autoFocus
        maxLength={maxLength}
        value={name}
        error={rename.error?.message}
        onChange={(event) => setName(event.currentTarget.value)}
      />
      <ActionIcon size="sm" type="submit" aria-label={t`Save`} loading={rename.isPending} disabled={!scope}>
        <IconCheck size={14} />
      </ActionIcon>
      <ActionIcon size="sm" aria-label={t`Cancel`} onClick={onClose}>
        <IconX size={14} />
      </ActionIcon>
    </form>
  );
}
