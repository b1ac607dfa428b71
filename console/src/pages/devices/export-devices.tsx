import { Button, Menu } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconFileExport } from '@tabler/icons-react';
import { useState } from 'react';
import { objectPath, send } from '../../api/objects';
import { downloadFrom } from '../../ui/download';
import { jobsPath, type Job } from '../jobs/job';

const pollMs = 300;

/** Waits for the end of a job. */
async function ended(job: Job): Promise<Job> {
  let current = job;
  while (current.state === 'running') {
    await new Promise((resolve) => setTimeout(resolve, pollMs));
    current = await send<Job>('GET', objectPath(jobsPath, job.id));
  }
  if (current.state !== 'done') throw new Error(current.error ?? current.state);
  return current;
}

/** Saves all devices that the caller may see, without their secrets. */
export function ExportDevices() {
  const { t } = useLingui();
  const [isPending, setPending] = useState(false);
  const save = async (format: 'csv' | 'jsonl') => {
    setPending(true);
    try {
      const { id } = await ended(await send<Job>('POST', '/api/v1/exports', { body: { kind: 'devices', format } }));
      await downloadFrom(`/api/v1/exports/${encodeURIComponent(id)}/content`, `devices.${format}`);
    } catch (error) {
      notifications.show({ color: 'red', message: t`The export failed: ${(error as Error).message}` });
    } finally {
      setPending(false);
    }
  };
  return (
    <Menu>
      <Menu.Target>
        <Button variant="default" leftSection={<IconFileExport size={14} />} loading={isPending}>
          <Trans>Export</Trans>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={() => void save('csv')}>
          <Trans>All devices, CSV</Trans>
        </Menu.Item>
        <Menu.Item onClick={() => void save('jsonl')}>
          <Trans>All devices, lines of JSON</Trans>
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
