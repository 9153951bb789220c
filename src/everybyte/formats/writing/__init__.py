"""Writers: a job as the configuration or command of a framework. The tables that read a framework's keys write them too."""
