import { Alert, Button, Group, Modal, Stack } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { CopyText } from './copy';

/** A secret that the node shows only once. */
export function Issued({
  title,
  secret,
  children,
  onClose,
}: {
  title: ReactNode;
  secret: string;
  children?: ReactNode;
  onClose: () => void;
}) {
  return (
    <Modal opened onClose={onClose} title={title} closeOnClickOutside={false} size="lg">
      <Stack gap="sm">
        <Alert color="yellow" variant="light">
          <Trans>Keep this now: it is not shown again.</Trans>
        </Alert>
        <CopyText text={secret} />
        {children}
        <Group justify="flex-end">
          <Button onClick={onClose}>
            <Trans>Done</Trans>
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
